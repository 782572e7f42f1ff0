//! One name for a process in all messages to the user: `worker-1 (id 2, pid 4711)`.
//!
//! The launcher knows a worker by its label, which is also the name of its log. The coordinator
//! knows it by the name in its certificate and by its id. The caller gives both. This module does
//! not know how to find them.

use std::fmt;

use everstep_transport::protocol::{NodeName, WorkerId};

/// A process that the launcher started.
#[derive(Clone, Debug)]
pub struct Naming {
    /// The label, which is also the name of its log.
    pub label: String,
    /// The id that the system gave the process.
    pub pid: u32,
    /// The name in its certificate.
    pub name: NodeName,
    /// Its id, once it has registered as a worker.
    pub id: Option<WorkerId>,
}

impl fmt::Display for Naming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { label, pid, id, .. } = self;
        match id {
            Some(id) => write!(f, "{label} (id {id}, pid {pid})"),
            None => write!(f, "{label} (pid {pid})"),
        }
    }
}

impl Naming {
    /// The coordinator's words, with this name in place of each mention of this worker.
    pub fn reword(&self, words: &str) -> String {
        let (ours, name) = (self.to_string(), self.name.as_str());
        let Some(id) = self.id else { return words.replace(name, &ours) };
        let words = words.replace(name, &ours);
        // "(id 2" is not the beginning of "(id 21".
        let theirs = [format!("(id {id})"), format!("(id {id},")];
        let mut rest = words.as_str();
        let mut said = String::new();
        while let Some(at) = theirs.iter().filter_map(|id| rest.find(id)).min() {
            let end = rest[at..].find(')').map_or(rest.len(), |length| at + length + 1);
            let begin = rest[..at].rfind("worker ").filter(|begin| is_label(&rest[*begin..at]));
            said += &rest[..begin.unwrap_or(end)];
            said += begin.map_or("", |_| &ours);
            rest = &rest[end..];
        }
        said + rest
    }
}

/// Whether these words are the beginning of a label: "worker 7 ".
fn is_label(words: &str) -> bool {
    let number = words.strip_prefix("worker ").and_then(|rest| rest.strip_suffix(' '));
    number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn naming(id: Option<u64>) -> Naming {
        let name = NodeName::parse("worker-00ff").expect("a name");
        Naming { label: "worker-1".into(), pid: 4711, name, id: id.map(WorkerId) }
    }

    #[test]
    fn a_worker_is_called_by_one_name_whatever_the_coordinator_calls_it() {
        let ours = "worker-1 (id 2, pid 4711)";
        for (words, said) in [
            ("worker 7 (id 2) was lost: silent", format!("{ours} was lost: silent")),
            ("it and worker 7 (id 2, on b) are", format!("it and {ours} are")),
            ("worker-00ff reported no digest", format!("{ours} reported no digest")),
            (
                "worker 2 (id 7): closed; worker 7 (id 2); worker 1 (id 21)",
                format!("worker 2 (id 7): closed; {ours}; worker 1 (id 21)"),
            ),
            ("coordinator (id 2) of worker 2", "coordinator (id 2) of worker 2".into()),
        ] {
            assert_eq!(naming(Some(2)).reword(words), said);
        }
    }

    #[test]
    fn a_process_without_an_id_is_called_by_label_and_process() {
        assert_eq!(
            naming(None).reword("worker-00ff was refused"),
            "worker-1 (pid 4711) was refused"
        );
    }
}
