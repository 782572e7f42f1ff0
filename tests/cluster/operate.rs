//! Three coordinators and two workers that were started by hand, and every verb of an operator, as
//! it is typed.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::world::{Ended, Program, Signal, UNTIL, World, show, until};

/// Daemons that the test starts by hand.
struct ByHand {
    world: World,
    /// Coordinators, each with its address.
    coordinators: Vec<(Program, String)>,
}

/// A daemon that listens, and its address.
fn listening(mut program: Program) -> (Program, String) {
    let line: Value =
        serde_json::from_str(&program.line().expect("a line")).expect("a line of JSON");
    let address = line["address"].as_str().expect("an address").to_string();
    (program, address)
}

impl ByHand {
    /// One coordinator that founds a cluster.
    fn found(world: World) -> Self {
        let founder = world.start(&["coordinator", "--dir", "one", "--bootstrap"]);
        Self { coordinators: vec![listening(founder)], world }
    }

    /// Runs a verb, which must succeed.
    fn ask(&self, verb: &[&str]) -> String {
        let dir = self.world.path("one");
        let ended = self.try_to(&[verb, &["--dir", show(&dir)]].concat());
        assert_eq!(ended.code, Some(0), "{verb:?}: {ended:?}");
        ended.stdout
    }

    /// As [`ByHand::ask`], with an answer in JSON.
    fn json(&self, verb: &[&str]) -> Value {
        serde_json::from_str(&self.ask(&[verb, &["--json"]].concat())).expect("JSON")
    }

    fn try_to(&self, verb: &[&str]) -> Ended {
        self.world.start(verb).end()
    }

    /// One more coordinator joins, with the command that the cluster prints.
    fn add(&mut self, dir: &str) {
        let said = self.ask(&["coordinator", "add", "--ttl", "5m"]);
        let (echo, command) = said.split_once(" | everstep ").expect("the token comes from stdin");
        let token = echo.strip_prefix("echo ").expect("the token");
        let token = format!("@{}", show(&self.world.write(&format!("{dir}.token"), token)));
        let mut words: Vec<&str> = command.split_whitespace().collect();
        for (placeholder, meant) in [("DIR", dir), ("HOST:PORT", "127.0.0.1:0"), ("@-", &token)] {
            let at = words.iter().position(|word| *word == placeholder);
            words[at.unwrap_or_else(|| panic!("no {placeholder}: {said}"))] = meant;
        }
        self.coordinators.push(listening(self.world.start(&words)));
    }

    fn addresses(&self) -> String {
        let all: Vec<_> = self.coordinators.iter().map(|(_, address)| &**address).collect();
        all.join(",")
    }

    /// The coordinators, once `count` of them have a vote.
    fn until_voters(&self, count: usize) -> Vec<Value> {
        until(&format!("{count} that vote"), || {
            let all = self.json(&["coordinator", "status"])["coordinators"].as_array()?.clone();
            let votes = all.iter().filter(|coordinator| coordinator["voter"] == true).count();
            (votes == count && all.len() == count).then_some(all)
        })
    }

    /// The newest run, once it is in this state.
    fn until_run(&self, state: &str) -> Value {
        until(&format!("a run that is {state}"), || {
            Some(self.json(&["run", "status"])).filter(|run| run["state"] == state)
        })
    }
}

/// The leader, and the other coordinators.
fn by_leadership(coordinators: Vec<Value>) -> (Value, Vec<Value>) {
    let (mut leads, others): (Vec<_>, Vec<_>) =
        coordinators.into_iter().partition(|coordinator| coordinator["leader"] == true);
    (leads.pop().expect("a coordinator leads"), others)
}

fn submit(cluster: &ByHand, file: &Path) -> u64 {
    cluster.json(&["run", "submit", show(file)])["id"].as_u64().expect("an id")
}

#[test]
fn a_cluster_that_was_started_by_hand_is_operated_by_verbs() {
    let mut cluster = ByHand::found(World::new().with("run.start_workers", 2));
    let hash = cluster.world.undisturbed();
    cluster.add("two");
    cluster.add("three");
    let told = cluster.until_voters(3).len();
    assert_eq!(told, 3);
    let said = cluster.ask(&["coordinator", "status"]);
    assert!(said.contains("3 of 3 that vote are there, one of them may be lost"), "{said}");
    assert!(cluster.ask(&["run", "status"]).starts_with("waiting for a run"));
    assert_eq!(cluster.json(&["run", "ls"]), serde_json::json!([]));

    // Two workers, with a token that admits two.
    let token = cluster.ask(&["token", "create", "--role", "worker", "--uses", "2"]);
    let listed = cluster.json(&["token", "ls"]);
    let id = listed.as_array().and_then(|all| all.iter().find(|it| it["uses_left"] == 2));
    let id = id.expect("the token")["id"].as_str().expect("an id").to_string();
    assert!(token.contains(&id) && !listed.to_string().contains(token.trim()), "{listed}");
    let addresses = cluster.addresses();
    let join = ["worker", "--coordinators", &addresses, "--join", token.trim(), "--dir", "models"];
    let workers = [(); 2].map(|()| listening(cluster.world.start(&join)).0);

    // A run that is cancelled, while leadership goes from one coordinator to another.
    let endless = cluster.world.write("endless.toml", &{
        let config = std::fs::read_to_string(cluster.world.config()).expect("a configuration");
        config.replace("run.steps = 12", "run.steps = 1000000")
    });
    let first = submit(&cluster, &endless);
    cluster.until_run("training");
    assert!(cluster.ask(&["worker", "ls"]).starts_with("2 workers train"));
    let (leader, _) = by_leadership(cluster.until_voters(3));
    let next = cluster.json(&["coordinator", "transfer-leader"])["leader"].clone();
    assert_ne!(next, leader["id"]);
    let (leader, others) = by_leadership(cluster.until_voters(3));
    assert_eq!(leader["id"], next);
    let ours = cluster.try_to(&["run", "submit", show(&cluster.world.config()), "--dir", "one"]);
    assert!(ours.block().contains("already trains"), "{ours:?}");
    assert_eq!(cluster.json(&["run", "cancel"])["id"], first);
    assert!(cluster.until_run("failed")["status"].as_str().expect("words").contains("cancelled"));

    // A run that is trained, while a coordinator is removed: any one but the first and the leader.
    let second = submit(&cluster, &cluster.world.config());
    let removed = others.iter().find(|it| it["id"] != 1).unwrap_or(&others[0]);
    let address = removed["address"].as_str().expect("an address").to_string();
    cluster.ask(&["coordinator", "remove", &removed["id"].to_string()]);
    cluster.until_voters(2);
    let at = cluster.coordinators.iter().position(|(_, its)| *its == address).expect("one");
    let ended = cluster.coordinators.remove(at).0.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let run = cluster.until_run("complete");
    assert_eq!((&run["id"], &run["hash"]), (&second.into(), &hash.into()));
    let states = cluster.json(&["run", "ls"]);
    let states: Vec<_> = states.as_array().expect("a list").iter().map(|it| &it["state"]).collect();
    assert_eq!(states, ["failed", "complete"]);

    // No node joins with a revoked token, and no answer comes from a cluster that is gone.
    cluster.ask(&["token", "revoke", &id]);
    assert!(!cluster.json(&["token", "ls"]).to_string().contains(&id));
    drop(workers);
    cluster.coordinators.iter().for_each(|(program, _)| program.signal(Signal::KILL));
    let addresses = cluster.addresses();
    let place = ["--dir", "one", "--coordinators", &addresses];
    let ended = cluster.try_to(&[&["run", "status"][..], &place].concat());
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(ended.block().contains("no coordinator answers: tried 127.0.0.1:"), "{ended:?}");
}

#[test]
fn a_run_of_daemons_is_saved_paused_resumed_and_rolled_back_by_verbs() {
    let world = World::lasting(300).with("checkpoint.every", 1_000_000);
    let (wanted, store) = (world.undisturbed(), world.path("store"));
    let world = world.with("checkpoint.path", show(&store)).with("run.start_workers", 2);
    let cluster = ByHand::found(world);
    let (addresses, token) = (cluster.addresses(), cluster.world.path("one/join.token"));
    let token = format!("@{}", show(&token));
    let join = ["worker", "--coordinators", &addresses, "--join", &token, "--dir", "models"];
    let full_speed = cluster.world.path("full-speed");
    let _workers = [(); 2].map(|()| {
        let mut worker = cluster.world.pace(cluster.world.command(&join));
        worker.env(UNTIL, &full_speed);
        Program::start(worker)
    });
    submit(&cluster, &cluster.world.config());
    let until_after = |step: u64| {
        until("a later step", || {
            cluster.json(&["run", "status"])["step"].as_u64().filter(|now| *now > step)
        })
    };
    until_after(2);
    assert_eq!(cluster.json(&["run", "pause"])["state"], "paused");
    let saved = cluster.json(&["checkpoint", "now"]);
    let step = saved["step"].as_u64().expect("a step");
    assert_eq!((&saved["complete"], step > 2), (&true.into(), true), "{saved}");
    let path = saved["path"].as_str().expect("a path");
    assert!(path.starts_with(show(&store)), "{path}");
    assert_ne!(cluster.json(&["run", "resume"])["state"], "paused");
    until_after(step);
    assert_eq!(cluster.json(&["run", "pause"])["state"], "paused");
    cluster.ask(&["run", "rollback", "--step", &step.to_string()]);
    until("it has gone back", || (cluster.json(&["run", "status"])["step"] == step).then_some(()));
    fs::write(full_speed, "").expect("written");
    assert_ne!(cluster.json(&["run", "resume"])["state"], "paused");
    assert_eq!(cluster.until_run("complete")["hash"], wanted);
}

#[test]
fn a_revoked_worker_ends_in_words_and_a_mistyped_name_is_not_revoked() {
    let cluster = ByHand::found(World::new());
    let (addresses, token) = (cluster.addresses(), cluster.world.path("one/join.token"));
    let token = format!("@{}", show(&token));
    let join = ["worker", "--coordinators", &addresses, "--join", &token, "--dir", "models"];
    let worker = listening(cluster.world.start(&join)).0;
    let name = until("a worker that waits", || {
        cluster.json(&["worker", "ls"])["idle"][0].as_str().map(str::to_string)
    });
    let refused = cluster.try_to(&["worker", "revoke", "nosuch", "--dir", "one"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.block().contains("there is no worker nosuch"), "{refused:?}");
    cluster.ask(&["worker", "revoke", "nosuch", "--unknown"]);
    cluster.ask(&["worker", "revoke", &name]);
    let ended = worker.end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.block().contains("was removed from the cluster"), "{ended:?}");
    cluster.ask(&["worker", "revoke", &name]); // an operator may repeat it
}

#[test]
fn an_operator_that_the_leader_has_heard_is_revoked_and_a_mistyped_name_is_not() {
    let mut cluster = ByHand::found(World::new());
    cluster.add("two");
    cluster.until_voters(2);
    // A revoked operator's folder has no credentials that count until it has others.
    let own = |dir| {
        let said = cluster.try_to(&["operator", "ls", "--json", "--dir", dir]).stdout;
        let said: Value = serde_json::from_str(&said).ok()?;
        said["own"].as_str().map(str::to_string)
    };
    let first = until("an operator", || own("one"));
    let other = until("another operator", || own("two"));
    assert_ne!(first, other);
    let refused = cluster.try_to(&["operator", "revoke", "nosuch", "--dir", "one"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.block().contains("there is no operator nosuch"), "{refused:?}");
    let known = cluster.json(&["operator", "ls"])["known"].to_string();
    assert!(known.contains(&first) && known.contains(&other), "{known}");
    cluster.ask(&["operator", "revoke", "nosuch", "--unknown"]);
    cluster.ask(&["operator", "revoke", &other]);
    cluster.ask(&["operator", "revoke", &other]); // an operator may repeat it
    until("another name", || own("two").filter(|name| *name != other));
    let listed = cluster.ask(&["operator", "ls"]);
    let state = |name: &str| {
        let row =
            listed.lines().find(|row| row.contains(name)).unwrap_or_else(|| panic!("{listed}"));
        row.split_whitespace().last().map(str::to_string)
    };
    assert_eq!(state(&first).as_deref(), Some("one"), "{listed}");
    assert_eq!(state(&other).as_deref(), Some("revoked"), "{listed}");
}
