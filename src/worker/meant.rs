//! The worker that a user means: by its number, by `id:9`, by the name of its node, or by the label
//! that names a local cluster's log.
//!
//! People read the number in every sentence, so it comes first. If a process has registered more
//! than once, the newest registration counts.

use std::path::Path;

use everstep_transport::protocol::WorkerId;
use everstep_transport::protocol::outcome::WorkerView;
use serde_json::Value;

use crate::failure::{Exit, Failure};

/// The worker that the user means.
pub(crate) fn meant<'a>(
    word: &str,
    dir: &Path,
    workers: &'a [WorkerView],
) -> Option<&'a WorkerView> {
    let newest = |is: &dyn Fn(&WorkerView) -> bool| workers.iter().rfind(|view| is(view));
    if let Ok(number) = word.parse::<u64>() {
        return newest(&|view| u64::from(view.number) == number);
    }
    if let Some(id) = word.strip_prefix("id:") {
        return newest(&|view| view.worker.to_string() == id);
    }
    let labelled = || labelled(word, dir);
    newest(&|view| view.name.as_str() == word)
        .or_else(|| labelled().and_then(|id| newest(&|view| view.worker == id)))
}

/// The error for a word that means no worker.
pub(crate) fn unknown(word: &str, dir: &Path, workers: &[WorkerView]) -> Failure {
    let there: Vec<_> = workers.iter().filter(|view| view.rank.is_some()).collect();
    let labels: Vec<_> = there.iter().map(|view| view.label().to_string()).collect();
    let known = match labels.is_empty() {
        true => "`everstep worker ls` lists those that are known".into(),
        false => format!("those that take part are {}", labels.join(", ")),
    };
    Failure::new(Exit::Usage, format!("there is no worker {word}"))
        .at(dir.display())
        .next(format!("pass a worker's number, id:ID, or name: {known}"))
}

/// The newest worker with this label, if the launcher has started one.
fn labelled(label: &str, dir: &Path) -> Option<WorkerId> {
    let text = std::fs::read_to_string(dir.join("cluster.json")).ok()?;
    let cluster: Value = serde_json::from_str(&text).ok()?;
    let ours = cluster["workers"].as_array()?.iter().rfind(|worker| worker["label"] == label)?;
    Some(WorkerId(ours["id"].as_u64()?))
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::message::Message;
    use everstep_transport::protocol::{NodeName, exemplars};

    use super::*;

    fn view(number: u32, id: u64, name: &str) -> WorkerView {
        let views = exemplars::all().into_iter().find_map(|message| match message {
            Message::Update(update) => update.workers.into_iter().next(),
            _ => None,
        });
        let name = NodeName::parse(name).expect("a name");
        WorkerView { worker: WorkerId(id), number, name, host: None, ..views.expect("a view") }
    }

    #[test]
    fn a_number_is_a_number_and_an_id_says_that_it_is_one() {
        let workers = [view(1, 2, "a"), view(2, 9, "b"), view(9, 12, "c"), view(2, 14, "b")];
        let folder = tempfile::tempdir().expect("a folder");
        let listed = r#"{"workers": [{"label": "worker-1", "id": 2}]}"#;
        std::fs::write(folder.path().join("cluster.json"), listed).expect("written");
        let id = |word| meant(word, folder.path(), &workers).map(|view| view.worker.0);
        assert_eq!((id("2"), id("9"), id("1")), (Some(14), Some(12), Some(2)));
        assert_eq!((id("id:2"), id("id:9"), id("b")), (Some(2), Some(9), Some(14)));
        assert_eq!(id("worker-1"), Some(2));
        assert_eq!([id("12"), id("id:3"), id("worker-7"), id("id:x")], [None; 4]);
        let words = unknown("12", folder.path(), &workers).to_string();
        assert!(words.contains("there is no worker 12") && words.contains("worker 9 (id 12)"));
    }
}
