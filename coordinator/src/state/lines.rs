//! What the log says of metrics lines: the history that they belong to, and the lost lines.
//!
//! The lines themselves are not in the log: every coordinator keeps them in a file of its own.

use everstep_transport::protocol::outcome::EventKind;
use everstep_transport::protocol::rejection::Rejection;
use everstep_transport::protocol::{Generation, Lineage, Step};
use rkyv::{Archive, Deserialize, Serialize};

use super::{EntryOutcome, State};

/// How many gaps the state tells apart. If there are more, the oldest two become one.
const GAPS: usize = 64;

/// Steps with lines that no process has any more.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The first of these steps.
    pub from: Step,
    /// The last of these steps.
    pub to: Step,
}

impl Gap {
    /// Whether the line of this step is lost in this gap.
    pub fn contains(&self, step: Step) -> bool {
        self.from <= step && step <= self.to
    }
}

/// What a rollback has undone.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Undone {
    /// The step to which the run went back: the steps after it are undone.
    pub after: Step,
    /// The generation that went back: later steps are of this one or a later one.
    pub before: Generation,
}

impl Undone {
    /// Whether a line of this step and generation is undone.
    fn has(&self, step: Step, generation: Generation) -> bool {
        step > self.after && generation < self.before
    }
}

/// The lines that a file of this run holds, if it holds all that there are.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct LineHistory {
    /// The run, and its newest rollback, that the history belongs to.
    pub lineage: Lineage,
    /// What rollbacks have undone, ascending by both fields. A file may be of a history before any
    /// of them.
    pub undone: Vec<Undone>,
    /// Lost lines, in the order of their steps.
    pub gaps: Vec<Gap>,
}

impl LineHistory {
    /// Whether a line of this step and generation can be of this history.
    pub fn admits(&self, step: Step, generation: Generation) -> bool {
        !self.undone.iter().any(|undone| undone.has(step, generation))
    }

    /// The run goes back to this step, with this generation. What went back to the same step
    /// before, or to a later one, is undone as well.
    pub(super) fn go_back(&mut self, generation: Generation, step: Step) {
        self.lineage.rollback = generation;
        self.undone.retain(|undone| undone.after < step);
        self.undone.push(Undone { after: step, before: generation });
        self.gaps.retain_mut(|gap| {
            gap.to = gap.to.min(step);
            gap.from <= gap.to
        });
    }

    /// The lines up to this step are with the cluster that trained it.
    pub(super) fn begin_after(&mut self, step: Step) {
        self.gaps = vec![Gap { from: Step(1), to: step }];
    }

    /// The gap in which the line of this step is lost.
    pub fn gap_at(&self, step: Step) -> Option<Gap> {
        self.gaps.iter().copied().find(|gap| gap.contains(step))
    }

    /// Adds a gap of this history, which lies within the settled steps.
    fn lose(&mut self, lineage: Lineage, gap: Gap, settled: Step) -> Result<(), Rejection> {
        if lineage != self.lineage {
            return Err(Rejection::OtherLineage);
        }
        if gap.from > gap.to || gap.to > settled {
            return Err(Rejection::Unsettled { from: gap.from, to: gap.to });
        }
        if self.gap_at(gap.from).is_some() {
            return Err(Rejection::KnownGap(gap.from));
        }
        self.gaps.push(gap);
        self.gaps.sort_by_key(|gap| gap.from);
        if self.gaps.len() > GAPS {
            let oldest = self.gaps.remove(0);
            self.gaps[0].from = oldest.from;
        }
        Ok(())
    }
}

impl State {
    /// The history that metrics lines belong to.
    pub fn lines(&self) -> &LineHistory {
        &self.lines
    }

    /// The newest step that the log shows to be settled: each step up to it has had its line.
    pub fn settled(&self) -> Step {
        let resumed = self.record().map_or(Step(0), |record| record.resume);
        self.runs.ended().map_or(resumed, |past| past.steps)
    }

    /// No process has these lines any more.
    pub(super) fn lose_lines(
        &mut self,
        unix_ms: u64,
        lineage: Lineage,
        gap: Gap,
    ) -> Result<EntryOutcome, Rejection> {
        let settled = self.settled();
        self.lines.lose(lineage, gap, settled)?;
        self.events.note(unix_ms, EventKind::LinesLost { from: gap.from, to: gap.to });
        Ok(EntryOutcome::Accepted)
    }
}
