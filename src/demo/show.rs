//! The demo under way: a cluster that trains, chance that kills, a user that presses keys.

use std::collections::BTreeSet;
use std::time::Instant;

use everstep_transport::protocol::{NodeName, RunSpec, WorkerId};
use rustix::process::{Pid, Signal, kill_process};

use super::keys::Action;
use super::model::{ViewContent, WorkerRow};
use super::screen::Screen;
use super::strikes::Strikes;
use crate::cluster::{Cluster, Report};
use crate::failure::Failure;
use crate::progress::{WaitReports, sentence};

/// How the demo ended.
pub(super) enum DemoEnd {
    /// The run trained its last step.
    Complete(Report),
    /// The user has left. The report has the run's results so far.
    Quit(Report),
}

/// The demo under way.
pub(super) struct Show<'a> {
    run: &'a RunSpec,
    cluster: Cluster,
    screen: Screen,
    chaos: Option<Strikes>,
    waiting: WaitReports,
    /// The processes that the user has stopped.
    paused: BTreeSet<u32>,
    /// The worker that the keys act on.
    chosen: Option<NodeName>,
    story: Vec<String>,
    /// The number of the newest event that the user has heard of.
    event: u64,
    began: Instant,
    /// Since when chance may strike.
    exposed: Option<Instant>,
}

impl<'a> Show<'a> {
    /// Submits `run` to a cluster that has just begun with `workers` workers.
    pub(super) async fn begin(
        run: &'a RunSpec,
        mut cluster: Cluster,
        workers: u32,
        chaos: Option<Strikes>,
    ) -> Result<Self, Failure> {
        cluster.submit(run).await?;
        let screen = Screen::open()?;
        Ok(Self {
            run,
            cluster,
            screen,
            chaos,
            waiting: WaitReports::new(run, workers),
            paused: BTreeSet::new(),
            chosen: None,
            story: Vec::new(),
            event: 0,
            began: Instant::now(),
            exposed: None,
        })
    }

    /// Goes on until the run is complete, or the user leaves.
    ///
    /// # Errors
    /// When the run cannot go on.
    pub(super) async fn perform(mut self) -> Result<DemoEnd, Failure> {
        while !self.cluster.advance().await? {
            self.tell_news();
            let model = self.show()?;
            self.strike(&model);
            for action in self.screen.actions()? {
                if action == Action::Quit {
                    return Ok(DemoEnd::Quit(self.cluster.report(self.run)));
                }
                self.act(action).await;
            }
        }
        self.tell_news();
        self.show()?;
        let report = self.cluster.report(self.run);
        // A stopped process could not hear that it may end.
        self.paused.iter().for_each(|pid| send(*pid, Signal::CONT));
        self.cluster.finish().await;
        Ok(DemoEnd::Complete(report))
    }

    fn show(&mut self) -> Result<ViewContent, Failure> {
        let model = self.model();
        self.chosen = model.row().map(|row| row.name.clone());
        self.screen.show(&model)?;
        Ok(model)
    }

    fn model(&self) -> ViewContent {
        let model = ViewContent::of(self.run, &self.cluster, &self.paused, self.chosen.as_ref());
        ViewContent { elapsed: self.began.elapsed(), story: self.story.clone(), ..model }
    }

    fn tell_news(&mut self) {
        let progress = self.cluster.progress();
        let events = progress.events.iter().filter(|event| event.number > self.event);
        let mut news: Vec<String> = events.filter_map(|event| sentence(event, progress)).collect();
        self.event = progress.events.last().map_or(self.event, |event| event.number);
        // The view itself shows that a run waits.
        if matches!(self.screen, Screen::Plain { .. }) {
            news.extend(self.waiting.sentences(progress));
        }
        news.into_iter().for_each(|sentence| self.tell(sentence));
    }

    fn tell(&mut self, sentence: String) {
        self.screen.tell(&sentence);
        let seconds = self.began.elapsed().as_secs();
        self.story.push(format!("{}:{:02} {sentence}", seconds / 60, seconds % 60));
    }

    /// Lets chance kill a member.
    fn strike(&mut self, model: &ViewContent) {
        let member = |row: &&WorkerRow| row.rank.is_some() && !self.is_paused(row);
        let members: Vec<WorkerRow> = model.rows.iter().filter(member).cloned().collect();
        let members: Vec<WorkerRow> = members.into_iter().filter(|row| row.pid.is_some()).collect();
        // A death before the run has begun would end it. Chance waits for its first member.
        if self.exposed.is_none() && !members.is_empty() {
            self.exposed = Some(Instant::now());
        }
        let (Some(chaos), Some(since)) = (&mut self.chaos, self.exposed) else { return };
        let strike = chaos.strike(since.elapsed(), members.len());
        if let Some(victim) = strike {
            self.kill(&members[victim], "chance kills");
        }
    }

    fn is_paused(&self, row: &WorkerRow) -> bool {
        row.pid.is_some_and(|pid| self.paused.contains(&pid))
    }

    async fn act(&mut self, action: Action) {
        let model = self.model();
        let choose = |at: usize| model.rows.get(at).map(|row| row.name.clone());
        match action {
            Action::Quit => {}
            Action::Choose(at) => self.chosen = choose(at).or(self.chosen.take()),
            Action::Up => self.chosen = choose(model.chosen.saturating_sub(1)),
            Action::Down => self.chosen = choose(model.chosen + 1).or(self.chosen.take()),
            Action::Add => {
                let told = match self.cluster.add_worker(&[]) {
                    Ok(()) => "a worker is added".into(),
                    Err(error) => format!("a worker cannot be started: {error}"),
                };
                self.tell(told);
            }
            Action::Kill | Action::Pause | Action::Drain => {
                let Some(row) = model.row() else { return };
                match (action, row.pid, row.worker) {
                    (Action::Kill, ..) if self.cluster.progress().registered().is_some() => {
                        self.tell("no process is killed before the run has begun".into());
                    }
                    (Action::Kill, ..) => self.kill(row, "you kill"),
                    (Action::Pause, Some(pid), _) => self.pause(pid, &row.label),
                    (Action::Drain, _, Some(worker)) => self.drain(worker).await,
                    _ => self.tell(format!("{} cannot be reached from here", row.label)),
                }
            }
        }
    }

    fn kill(&mut self, row: &WorkerRow, who: &str) {
        let Some(pid) = row.pid else {
            return self.tell(format!("{} runs elsewhere", row.label));
        };
        self.paused.remove(&pid);
        send(pid, Signal::KILL);
        self.tell(format!("{who} {}", row.label));
    }

    fn pause(&mut self, pid: u32, label: &str) {
        if self.paused.remove(&pid) {
            send(pid, Signal::CONT);
            self.tell(format!("{label} goes on"));
        } else {
            self.paused.insert(pid);
            send(pid, Signal::STOP);
            self.tell(format!("{label} is stopped"));
        }
    }

    async fn drain(&mut self, worker: WorkerId) {
        if let Err(error) = self.cluster.drain(worker).await {
            let called = self.cluster.progress().called(worker);
            self.tell(format!("{called} cannot leave: {error}"));
        }
    }
}

/// Sends a signal to a process. A process that has just ended does not get it.
fn send(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        let _ = kill_process(pid, signal);
    }
}
