//! One name for a process, in whatever is said to the user: `worker-1 (id 2, pid 4711)`.
//!
//! The launcher knows a worker by its label, which its log is named after; the coordinator knows it
//! by the name in its certificate and by its id. Both are what this module is given: it does not
//! know how they are found out.

use std::fmt;

use everstep_transport::protocol::{NodeName, WorkerId};

/// A process that the launcher started.
#[derive(Clone, Debug)]
pub struct Naming {
    /// What its log is named after.
    pub label: String,
    /// Its process id.
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
    /// The coordinator's words, with this name wherever they mean this worker.
    pub fn reword(&self, words: &str) -> String {
        let (ours, name) = (self.to_string(), self.name.as_str());
        let Some(id) = self.id else { return words.replace(name, &ours) };
        let words = words.replace(&format!("{name} (worker {id})"), &ours).replace(name, &ours);
        let theirs = format!("worker {id}");
        let mut parts = words.split(&theirs);
        let mut said = parts.next().unwrap_or_default().to_string();
        for part in parts {
            // "worker 2" is not the beginning of "worker 21".
            let whole = !part.starts_with(|next: char| next.is_ascii_digit());
            said.push_str(if whole { &ours } else { &theirs });
            said.push_str(part);
        }
        said
    }
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
            ("worker-00ff (worker 2) was lost: silent", format!("{ours} was lost: silent")),
            ("worker-00ff reported no digest", format!("{ours} reported no digest")),
            ("lost worker 2: closed; worker 21", format!("lost {ours}: closed; worker 21")),
            ("worker-00fe (worker 3) was lost", "worker-00fe (worker 3) was lost".into()),
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
