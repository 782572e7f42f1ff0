//! A name for each message, for logs and counters.

use super::Message;
use crate::protocol::question::{Question, Reply};

impl Message {
    /// Whether the message is a question with which an operator looks around, or its reply.
    pub fn is_question(&self) -> bool {
        matches!(self, Self::Ask(_) | Self::AskVerification { .. } | Self::Reply(_))
    }

    /// The message's name, for logs and counters.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "hello",
            Self::Register(_) => "register",
            Self::Heartbeat(_) => "heartbeat",
            Self::Status(_) => "status",
            Self::FetchRecord => "fetch_record",
            Self::Leave => "leave",
            Self::Finished(_) => "finished",
            Self::Failed { .. } => "failed",
            Self::Unable { .. } => "unable",
            Self::Written(_) => "written",
            Self::Saved(_) => "saved",
            Self::Unsaved { .. } => "unsaved",
            Self::WrittenManifest(_) => "written_manifest",
            Self::Damaged { .. } => "damaged",
            Self::Welcome { .. } => "welcome",
            Self::Registered { .. } => "registered",
            Self::Refused { .. } => "refused",
            Self::Evicted { .. } => "evicted",
            Self::Announce(_) => "announce",
            Self::HeartbeatAnswer { .. } => "heartbeat_answer",
            Self::Pause { .. } => "pause",
            Self::Feed { .. } => "feed",
            Self::Hold { .. } => "hold",
            Self::Write { .. } => "write",
            Self::WriteManifest(_) => "write_manifest",
            Self::Drain { .. } => "drain",
            Self::Dismiss => "dismiss",
            Self::Released { .. } => "released",
            Self::Coordinators { .. } => "coordinators",
            Self::FetchKeys => "fetch_keys",
            Self::Keys(_) => "keys",
            Self::Raft(_) => "raft",
            Self::Join { .. } => "join",
            Self::Joined { .. } => "joined",
            Self::Removed => "removed",
            Self::FetchHistory { .. } => "fetch_history",
            Self::History { .. } => "history",
            Self::FetchLines { .. } => "fetch_lines",
            Self::Lines { .. } => "lines",
            Self::Prepared(_) => "prepared",
            Self::Commit(_) => "commit",
            Self::Go { .. } => "go",
            Self::FetchParameters { .. } => "fetch_parameters",
            Self::FetchState { .. } => "fetch_state",
            Self::FetchMasters { .. } => "fetch_masters",
            Self::State { .. } => "state",
            Self::Watch { .. } => "watch",
            Self::Update(_) => "update",
            Self::Exited { .. } => "exited",
            Self::Request { .. } => "request",
            Self::Answer { .. } => "answer",
            Self::Transfer { .. } => "transfer",
            Self::Ask(question) => of_question(*question),
            Self::Reply(reply) => of_reply(reply),
            Self::Hears { .. } => "hears",
            Self::Stored(_) => "stored",
            Self::Predecessors { .. } => "predecessors",
            Self::AskVerification { .. } => "ask_verification",
            Self::Verify { .. } => "verify",
            Self::Verification { .. } => "verification",
            Self::Preempted(_) => "preempted",
            Self::StateDigest { .. } => "state_digest",
        }
    }
}

fn of_question(question: Question) -> &'static str {
    match question {
        Question::Coordinators => "ask_coordinators",
        Question::Tokens => "ask_tokens",
        Question::Runs => "ask_runs",
        Question::Revoked => "ask_revoked",
        Question::Checkpoints => "ask_checkpoints",
        Question::Operators => "ask_operators",
    }
}

fn of_reply(reply: &Reply) -> &'static str {
    match reply {
        Reply::Coordinators { .. } => "reply_coordinators",
        Reply::Tokens(_) => "reply_tokens",
        Reply::Runs(_) => "reply_runs",
        Reply::Revoked(_) => "reply_revoked",
        Reply::Checkpoints(_) => "reply_checkpoints",
        Reply::Operators(_) => "reply_operators",
    }
}
