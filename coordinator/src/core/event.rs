//! What happens to a coordinator, and what it wants done.

use everstep_transport::identity::{Identity, Refusal, TokenId};
use everstep_transport::protocol::outcome::Update;
use everstep_transport::protocol::{
    CoordinatorId, Frame, Lineage, Message, NodeName, RequestId, Step, Term,
};

use super::{LinkEnd, LinkId};
use crate::lines::{LineRecord, LinesFound};
use crate::state::{Entry, LineHistory, State};

/// What happens to a coordinator.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// A peer has proved who it is.
    Connected {
        /// Its link.
        link: LinkId,
        /// Who it is.
        identity: Identity,
    },
    /// A link is gone.
    Disconnected {
        /// Which.
        link: LinkId,
        /// What that tells of the peer's process.
        end: LinkEnd,
        /// Why, in words.
        reason: String,
    },
    /// A peer says something.
    Message {
        /// Its link.
        from: LinkId,
        /// What.
        message: Message,
    },
    /// This coordinator leads from now on, once its own entry of this term has applied.
    Elected {
        /// Its term, above all before.
        term: Term,
        /// Its id.
        id: CoordinatorId,
    },
    /// This coordinator leads no longer, or will not.
    Deposed,
    /// A coordinator leads, perhaps this one; of a term above this one's own, it deposes it.
    Leader {
        /// In which term.
        term: Term,
        /// Who, if that is known.
        leader: Option<CoordinatorId>,
    },
    /// This coordinator led after it asked, and every entry has applied that was agreed by then.
    Confirmed {
        /// Of [`Effect::Confirm`].
        ticket: u64,
    },
    /// Whether it led could not be found out.
    Unconfirmed {
        /// Of [`Effect::Confirm`].
        ticket: u64,
    },
    /// Somebody else reads through the shell: once it may be answered from what is known here,
    /// [`Effect::Looked`] says so, with this number or a later one.
    Look(u64),
    /// A snapshot took the place of entries that are not there any more, while it followed.
    Installed(Box<State>),
    /// A node was judged to be admitted: its use of the token is to be spent.
    Admit {
        /// The token.
        token: TokenId,
        /// The node.
        node: NodeName,
    },
    /// The log has come to this entry. Before the first [`Input::Elected`], what a durable log
    /// holds is applied again.
    Applied {
        /// The entry's index, above all before.
        index: u64,
        /// The term in which it came into the log.
        term: Term,
        /// The entry.
        entry: Entry,
    },
    /// The file of metrics lines that [`Effect::OpenLines`] asked for is open.
    LinesOpened {
        /// Of which history it is.
        lineage: Lineage,
        /// What it holds.
        found: LinesFound,
    },
    /// The file of metrics lines is durable up to this step.
    LinesDurable {
        /// Of which history it is.
        lineage: Lineage,
        /// The newest step that was appended, or skipped, before it was made durable.
        reach: Step,
    },
    /// Another coordinator has told a page of the history that is missing here.
    HistoryTold,
    /// Time has passed: to be given every [`super::TICK`].
    Tick,
}

/// What a coordinator wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Say this.
    Send {
        /// To whom.
        to: LinkId,
        /// What.
        message: Message,
    },
    /// Say this to many: it may be large, so that there is one of it, and not one for each.
    Broadcast {
        /// To whom.
        to: Vec<LinkId>,
        /// What.
        message: Message,
    },
    /// Bring this into the log; [`Input::Applied`] tells when it is there. If it cannot be brought
    /// in at once, it is to wait as long as this coordinator leads: it is not said again.
    Propose(Entry),
    /// Open the file with the metrics lines of this run, an empty one if there is none; cut away
    /// the lines after its rollback's step that are not of this history, and give
    /// [`Input::LinesOpened`]. What follows on lines is about this file.
    OpenLines(LineHistory),
    /// Write these lines behind those that are there, make them durable, then give
    /// [`Input::LinesDurable`]. Several of these may become durable at once.
    AppendLines(Vec<LineRecord>),
    /// The lines up to this step are lost: the next line is that of the step after it. To be made
    /// durable as lines are.
    SkipLines(Step),
    /// Send another coordinator [`Message::Lines`]: the lines that follow each other after this
    /// step, at most [`crate::lines::PAGE`].
    TellLines {
        /// Its link.
        to: LinkId,
        /// Of which history.
        lineage: Lineage,
        /// How far the file goes.
        reach: Step,
        /// The step.
        after: Step,
    },
    /// Send a watcher [`Message::Update`], with the lines that follow each other after this step,
    /// at most [`crate::lines::PAGE`]; with none if there is no step.
    Update {
        /// Its link.
        to: LinkId,
        /// The step.
        after: Option<Step>,
        /// All but the lines.
        update: Box<Update>,
    },
    /// What an entry has brought to the history, for whoever keeps all of it. It follows from the
    /// log, and need not be durable before it is acted upon.
    History(Frame),
    /// Does this coordinator still lead? [`Input::Confirmed`] tells, or [`Input::Unconfirmed`].
    Confirm {
        /// Numbers the question.
        ticket: u64,
    },
    /// Looks up to this number may be answered from what is known now: it is all that was agreed
    /// when they were asked.
    Looked(u64),
    /// An operator asks how the coordinators stand, which their replicas know.
    Describe {
        /// Its link.
        to: LinkId,
    },
    /// An operator asks that another coordinator lead.
    Transfer {
        /// Its link.
        asked_by: LinkId,
        /// What it calls this.
        id: RequestId,
        /// Who is to; none: whoever has most of the log.
        to: Option<CoordinatorId>,
    },
    /// A use of a token was spent, or not.
    Admitted {
        /// The token.
        token: TokenId,
        /// The node.
        node: NodeName,
        /// Why it is not admitted after all.
        refusal: Option<Refusal>,
    },
    /// Close a link.
    Close {
        /// Which.
        to: LinkId,
        /// Why, in words for the peer.
        reason: String,
    },
}
