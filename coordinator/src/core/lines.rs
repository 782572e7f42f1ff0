//! The lines that step leaders report: on their way into the log.
//!
//! A step leader repeats its lines until it is told that they are written, and they are written
//! once their entry has applied: only then a majority has them, and the worker drops what it is
//! told of.
//! What is on its way already is not proposed again, unless that takes long.

use std::time::Duration;

use everstep_transport::protocol::{Message, MetricsLine, Step};
use everstep_transport::time::Time;

use super::Core;
use crate::state::Command;

/// Lines that were proposed so long ago, and did not come, are proposed again.
const OVERDUE: Duration = Duration::from_secs(1);

/// The newest line on its way into the log, and since when it is.
#[derive(Debug, Default)]
pub(super) struct Reported(Option<(Step, Time)>);

impl Reported {
    fn newest(&self, now: Time) -> Step {
        let timely = self.0.filter(|(_, since)| now.since(*since) < OVERDUE);
        timely.map_or(Step(0), |(step, _)| step)
    }
}

impl Core {
    /// The step leader reports these: those that follow the newest go into the log.
    pub(super) fn report(&mut self, now: Time, lines: Vec<MetricsLine>) {
        let steps = self.state.run().map_or(0, |run| run.steps);
        let mut newest = self.state.written().max(self.reported.newest(now));
        let mut fresh = Vec::new();
        for line in lines.into_iter().filter(|line| line.step.0 <= steps) {
            let skips = fresh.is_empty() && self.state.lacks_lines() && line.step > newest;
            if line.step == newest.next() || skips {
                newest = line.step;
                fresh.push(line);
            }
        }
        if !fresh.is_empty() {
            self.reported = Reported(Some((newest, now)));
            let generation = self.state.generation();
            self.propose(now, Command::Lines { generation, lines: fresh });
        }
    }

    /// Lines are written, or came too late: their step leader is told.
    pub(super) fn settled(&mut self, now: Time) {
        let written = self.state.written();
        if self.reported.newest(now) <= written {
            self.reported = Reported::default();
        }
        let leader = self.state.record().map(|record| record.step_leader());
        if let Some(worker) = leader
            && let Some(link) = self.links.of_registered(worker)
        {
            let (generation, retained) = (self.state.generation(), self.retained(worker));
            self.send(link, Message::HeartbeatAnswer { generation, written, retained });
        }
        self.conclude(now);
    }
}
