//! What an earlier launcher has left of its cluster, in `cluster.json`.
//!
//! In: the text of the file. Out: the workers that this launcher had started. They have ended with
//! it. A worker without a label was started by hand, so nothing here says whether it has ended. A
//! file that is missing or damaged leaves nothing.

use std::fs;
use std::path::Path;

use everstep_transport::protocol::NodeName;
use everstep_transport::protocol::reason::ProcessExit;
use serde_json::Value;

use super::naming::Naming;
use super::workers::EndedProcess;

/// What is left of a cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct Earlier {
    /// The workers that the launcher had started, the ended ones among them.
    workers: Vec<EndedProcess>,
    /// How many of those had not ended before their launcher did.
    living: u32,
}

impl Earlier {
    /// What is left in a run's directory.
    pub(crate) fn read(dir: &Path) -> Self {
        let text = fs::read_to_string(dir.join("cluster.json")).unwrap_or_default();
        Self::parse(&serde_json::from_str(&text).unwrap_or_default())
    }

    fn parse(cluster: &Value) -> Self {
        let worker = |listed: &Value| {
            let name = NodeName::parse(listed["name"].as_str()?)?;
            let label = listed["label"].as_str()?.to_string();
            let pid = listed["pid"].as_u64().unwrap_or_default() as u32;
            let is_over = matches!(listed["state"].as_str(), Some("lost" | "left"));
            let address = listed["address"].as_str().and_then(|text| text.parse().ok());
            let (naming, how) = (Naming { label, pid, name, id: None }, ProcessExit::WithLauncher);
            Some((EndedProcess { naming, address, how }, is_over))
        };
        let listed = cluster["workers"].as_array().into_iter().flatten();
        let workers: Vec<_> = listed.filter_map(worker).collect();
        let living = workers.iter().filter(|(_, is_over)| !is_over).count() as u32;
        Self { workers: workers.into_iter().map(|(worker, _)| worker).collect(), living }
    }

    /// How many workers the launcher had when it ended.
    pub(crate) fn living(&self) -> u32 {
        self.living
    }

    /// The workers that the launcher had started.
    pub(super) fn into_workers(self) -> Vec<EndedProcess> {
        self.workers
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_workers_that_the_launcher_had_started_have_ended_with_it() {
        let cluster = json!({
            "workers": [
                { "id": 7, "name": "worker-a", "label": "worker-1", "state": "training", "pid": 9 },
                { "id": 8, "name": "worker-b", "label": "worker-2", "state": "lost", "pid": null },
                { "id": 9, "name": "worker-c", "label": null, "state": "training", "pid": null },
                { "id": null, "name": "worker-d", "label": "worker-3", "state": "starting" },
            ],
        });
        let earlier = Earlier::parse(&cluster);
        assert_eq!(earlier.living(), 2, "worker-1 and worker-3");
        let labels: Vec<_> = earlier.into_workers().into_iter().map(|it| it.naming.label).collect();
        assert_eq!(labels, ["worker-1", "worker-2", "worker-3"]);
    }

    #[test]
    fn a_damaged_file_leaves_nothing() {
        for cluster in [Value::Null, json!([]), json!({ "workers": [3] })] {
            let earlier = Earlier::parse(&cluster);
            assert_eq!((earlier.living(), earlier.into_workers().len()), (0, 0), "{cluster}");
        }
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(Earlier::read(folder.path()).living(), 0, "no file");
    }
}
