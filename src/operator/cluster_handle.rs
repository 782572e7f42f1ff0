//! The place of a cluster, as an operator on this machine finds it.
//!
//! In: flags. Out: an operator's credentials, and the coordinators' addresses. A run's directory
//! has both: its `cluster.json` has the addresses. A coordinator's directory has both in its own
//! files. On another machine, the user gives the addresses by hand, and the credentials are a copy
//! of a coordinator's `operator` folder.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use everstep_coordinator::daemon;
use everstep_transport::identity::{Credentials, Identity};
use everstep_worker::store_work::ClusterIdentity;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use serde_json::Value;

use super::{Operator, OperatorError};
use crate::cli::ClusterFlags;
use crate::cluster::{self, block_on};
use crate::failure::{Exit, Failure};
use crate::worker;

/// A cluster that an operator can ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClusterHandle {
    /// The directory of its run, or of a coordinator.
    pub(crate) dir: PathBuf,
    credentials: PathBuf,
    coordinators: Vec<SocketAddr>,
}

/// The file that lists a run's processes.
const LISTED: &str = "cluster.json";
/// The folder in which a coordinator keeps an operator's credentials.
const CREDENTIALS: &str = "operator";

impl ClusterHandle {
    /// The place that the flags name.
    pub(crate) fn find(flags: &ClusterFlags) -> Result<Self, Failure> {
        let dir = Self::dir(flags)?;
        let named: Result<Vec<_>, _> =
            flags.coordinators.iter().map(|name| worker::addresses(name)).collect();
        let (named, credentials) = (named?.concat(), credentials(&dir)?);
        let coordinators = if named.is_empty() { listed(&dir)? } else { named };
        Ok(Self { dir, credentials, coordinators })
    }

    /// The directory that the flags mean.
    pub(crate) fn dir(flags: &ClusterFlags) -> Result<PathBuf, Failure> {
        flags.dir.clone().map_or_else(newest_run, Ok)
    }

    /// Calls `work` with an operator of the cluster.
    pub(crate) fn ask<T>(
        &self,
        work: impl AsyncFnOnce(&mut Operator) -> Result<T, OperatorError>,
    ) -> Result<T, Failure> {
        if self.is_down() {
            return Err(
                self.failure(OperatorError::Unanswered("none of its processes runs".into()))
            );
        }
        block_on(async {
            let mut operator = self.operator()?;
            let done = work(&mut operator).await.map_err(|error| self.failure(error));
            operator.close().await;
            done
        })
    }

    /// The identity in the operator's credentials.
    pub(crate) fn identity(&self) -> Result<Identity, Failure> {
        Ok(self.held()?.identity().clone())
    }

    /// What tells the cluster from any other one in a store of checkpoints.
    pub(crate) fn cluster(&self) -> Result<ClusterIdentity, Failure> {
        Ok(ClusterIdentity::of(&self.held()?))
    }

    fn held(&self) -> Result<Credentials, Failure> {
        let held = Credentials::load(&self.credentials);
        held.map_err(|error| self.failure(OperatorError::Unusable(error.to_string())))
    }

    /// An operator of the cluster.
    pub(crate) fn operator(&self) -> Result<Operator, Failure> {
        let operator = Operator::new(&self.credentials, &self.coordinators);
        operator.map_err(|error| self.failure(error))
    }

    /// An error in words for the user.
    pub(crate) fn failure(&self, error: OperatorError) -> Failure {
        match error {
            OperatorError::Unanswered(_) if self.is_over() => {
                Failure::new(Exit::Failed, "the run is over, and its coordinators with it")
                    .at(self.dir.display())
                    .next("everstep run status says how it ended")
            }
            OperatorError::Unanswered(why) if self.is_down() => {
                Failure::new(Exit::Capacity, "the run has stopped, and its coordinators with it")
                    .at(self.dir.display())
                    .because(why)
                    .next(format!("everstep resume {} goes on with it", self.dir.display()))
            }
            OperatorError::Unanswered(why) => {
                Failure::new(Exit::Capacity, "the cluster does not answer")
                    .at(self.dir.display())
                    .because(why)
                    .next(
                        "see that most of its coordinators run, and ask again. Training goes on \
                         without them",
                    )
            }
            OperatorError::Refused(why) => {
                Failure::new(Exit::Failed, "the cluster refuses").because(why).next(
                    "everstep run status says how the run stands, and everstep worker ls and \
                     everstep coordinator status list workers and coordinators",
                )
            }
            OperatorError::Unusable(why) => {
                Failure::new(Exit::Usage, "the operator's credentials cannot be used")
                    .at(self.credentials.display())
                    .because(why)
                    .next("pass the directory of a run or of a coordinator with --dir")
            }
        }
    }

    /// Whether the run is over, by its report or its events.
    fn is_over(&self) -> bool {
        // A report of a later build is one as well.
        if cluster::ended(&self.dir).map_or(true, |report| report.is_some()) {
            return true;
        }
        let events = fs::read_to_string(self.dir.join("events.jsonl")).unwrap_or_default();
        let last = events.lines().next_back().unwrap_or_default();
        let last: Value = serde_json::from_str(last).unwrap_or_default();
        matches!(last["event"].as_str(), Some("complete" | "failed"))
    }

    /// Whether all processes that the run's launcher listed have ended.
    fn is_down(&self) -> bool {
        let text = fs::read_to_string(self.dir.join(LISTED)).unwrap_or_default();
        let cluster: Value = serde_json::from_str(&text).unwrap_or_default();
        let of = |kind: &str| cluster[kind].as_array().cloned().unwrap_or_default();
        let all = [of("coordinators"), of("workers")].concat();
        let pids = all.iter().filter_map(|process| process["pid"].as_i64());
        let mut pids = pids.filter_map(|pid| Pid::from_raw(pid.try_into().ok()?)).peekable();
        let is_gone = |pid| test_kill_process(pid) == Err(Errno::SRCH);
        pids.peek().is_some() && pids.all(is_gone)
    }
}

/// The operator's credentials in a coordinator's directory, or in a run's directory, which has the
/// directories of its coordinators.
fn credentials(dir: &Path) -> Result<PathBuf, Failure> {
    let within = (1..=9).map(|number| dir.join(format!("coordinator-{number}")));
    let mut places = [dir.to_path_buf()].into_iter().chain(within);
    let found = places.find_map(|home| Some(home.join(CREDENTIALS)).filter(|path| path.is_dir()));
    found.ok_or_else(|| {
        Failure::new(Exit::Usage, "there is no cluster")
            .at(dir.display())
            .because(format!("no {CREDENTIALS} folder of a coordinator is there"))
            .next("pass the directory of a run or of a coordinator with --dir")
    })
}

/// The coordinators' addresses in the files of the directory.
fn listed(dir: &Path) -> Result<Vec<SocketAddr>, Failure> {
    let path = dir.join(LISTED);
    let unknown = |place: &Path, why: String| {
        Failure::new(Exit::Usage, "it is not known where the coordinators are")
            .at(place.display())
            .because(why)
            .next("pass --coordinators HOST:PORT,... with the addresses that they listen on")
    };
    let found = match fs::read_to_string(&path) {
        Ok(text) => addresses(&serde_json::from_str(&text).unwrap_or_default()),
        Err(_) => daemon::addresses(dir).map_err(|error| unknown(dir, error.to_string()))?,
    };
    match found.is_empty() {
        true => Err(unknown(dir, "it names no coordinator".into())),
        false => Ok(found),
    }
}

fn addresses(cluster: &Value) -> Vec<SocketAddr> {
    let all = cluster["coordinators"].as_array().into_iter().flatten();
    all.filter_map(|listed| listed["address"].as_str()?.parse().ok()).collect()
}

/// The directory under `runs` of the run that began last.
fn newest_run() -> Result<PathBuf, Failure> {
    let began =
        |dir: &PathBuf| fs::metadata(dir.join("run.json")).and_then(|it| it.modified()).ok();
    let dirs = fs::read_dir("runs").into_iter().flatten().flatten().map(|entry| entry.path());
    let newest = dirs.filter_map(|dir| Some((began(&dir)?, dir))).max();
    newest.map(|(_, dir)| dir).ok_or_else(|| {
        Failure::new(Exit::Usage, "there is no run")
            .at("runs")
            .next("pass the directory of a run or of a coordinator with --dir")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(addresses: &[&str]) -> Vec<SocketAddr> {
        addresses.iter().map(|address| address.parse().expect("an address")).collect()
    }

    #[test]
    fn a_run_s_directory_tells_of_all_coordinators() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(folder.path().join("coordinator-2/operator")).expect("a folder");
        let listed = r#"{"coordinators": [{"address": "127.0.0.1:4"}, {"address": "[::1]:5"}]}"#;
        fs::write(folder.path().join(LISTED), listed).expect("written");
        let flags = ClusterFlags { dir: Some(folder.path().into()), coordinators: Vec::new() };
        let place = ClusterHandle::find(&flags).expect("a cluster");
        assert_eq!(place.credentials, folder.path().join("coordinator-2/operator"));
        assert_eq!(place.coordinators, parse(&["127.0.0.1:4", "[::1]:5"]));
        let flags = ClusterFlags { coordinators: vec!["127.0.0.1:6".into()], ..flags };
        let place = ClusterHandle::find(&flags).expect("a cluster");
        assert_eq!(place.coordinators, parse(&["127.0.0.1:6"]));
    }

    #[test]
    fn a_run_whose_processes_have_all_ended_is_not_asked() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(folder.path().join("coordinator-1/operator")).expect("a folder");
        let mut ended = std::process::Command::new("true").spawn().expect("a process");
        let pid = ended.id();
        ended.wait().expect("its end");
        let list = |worker: u32| {
            let coordinator = format!(r#"{{"address": "127.0.0.1:4", "pid": {pid}}}"#);
            let workers = format!(r#"[{{"pid": null}}, {{"pid": {worker}}}]"#);
            let listed = format!(r#"{{"coordinators": [{coordinator}], "workers": {workers}}}"#);
            fs::write(folder.path().join(LISTED), listed).expect("written");
        };
        let flags = ClusterFlags { dir: Some(folder.path().into()), coordinators: Vec::new() };
        list(std::process::id());
        let cluster = ClusterHandle::find(&flags).expect("a cluster");
        assert!(!cluster.is_down(), "a worker runs");
        list(pid);
        let asked = cluster.ask(async |operator| operator.status().await);
        let words = asked.expect_err("nobody can answer").to_string();
        assert!(words.contains("everstep resume"), "{words}");
    }

    #[test]
    fn what_cannot_be_found_is_refused_with_what_to_pass() {
        let folder = tempfile::tempdir().expect("a folder");
        let flags = ClusterFlags { dir: Some(folder.path().into()), coordinators: Vec::new() };
        let words = ClusterHandle::find(&flags).expect_err("an empty folder").to_string();
        assert!(words.contains("with --dir"), "{words}");
        fs::create_dir(folder.path().join(CREDENTIALS)).expect("a folder");
        let words = ClusterHandle::find(&flags).expect_err("no addresses").to_string();
        assert!(words.contains("pass --coordinators HOST:PORT"), "{words}");
    }
}
