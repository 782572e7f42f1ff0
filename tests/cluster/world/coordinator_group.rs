//! Several coordinators, started by hand as a user does, and an operator that asks the leader.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use everstep_transport::identity::{Credentials, Role};
use everstep_transport::protocol::outcome::{Outcome, Update};
use everstep_transport::protocol::{
    CoordinatorId, Message, OperatorCommand, RequestId, RunId, Step,
};
use everstep_transport::quic::{Endpoint, Expected, Link, Settings};
use serde_json::Value;
use tokio::time::timeout;

use super::program::{Ended, Program};
use super::{command, show, until};

/// How long one coordinator may take to answer, before the operator asks the next one.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// The same over HTTP. There a coordinator waits for another leader before it refuses.
const HTTP_ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Several coordinators.
pub struct CoordinatorGroup {
    folder: PathBuf,
    /// The running coordinators.
    pub members: Vec<Member>,
    /// How many coordinators there have been.
    count: u32,
    /// How many commands there were.
    commands: u64,
}

/// A coordinator's process.
pub struct Member {
    /// The directory of its files.
    pub dir: PathBuf,
    /// The address on which it listens for links.
    pub address: SocketAddr,
    /// The address of its HTTP API.
    pub api: SocketAddr,
    /// Its process.
    pub program: Program,
}

impl CoordinatorGroup {
    /// Founds a cluster of `count` coordinators with these flags, whose files are in this folder.
    pub fn found(folder: &Path, count: usize, flags: &[&str]) -> Self {
        let mut group = Self::nowhere_yet(folder);
        let dir = group.next_dir();
        let mut founding = group.founding(&dir);
        founding.args(flags);
        let founder = Member::listening(founding, dir);
        group.members.push(founder.expect("it listens"));
        for _ in 1..count {
            group.join();
        }
        group
    }

    /// A folder for a cluster that is not founded yet.
    pub fn nowhere_yet(folder: &Path) -> Self {
        fs::create_dir_all(folder).expect("a folder");
        Self { folder: folder.to_path_buf(), members: Vec::new(), count: 0, commands: 0 }
    }

    /// The command that founds the cluster in this directory.
    pub fn founding(&self, dir: &Path) -> Command {
        self.coordinator(&["--dir", show(dir), "--bootstrap"])
    }

    /// The command that starts a coordinator. Its API has a port of the system's choice. The
    /// default port may belong to another cluster when the coordinator that had it starts again.
    fn coordinator(&self, flags: &[&str]) -> Command {
        let mut command = command(&self.folder, &[&["coordinator"], flags].concat());
        command.env("EVERSTEP_HTTP", "127.0.0.1:0");
        command
    }

    /// Another coordinator joins.
    pub fn join(&mut self) {
        let (dir, before) = (self.next_dir(), self.members.len());
        let joining = Member::listening(self.joining(&dir), dir);
        self.members.push(joining.expect("it listens"));
        self.leader(before + 1);
    }

    /// The directory of the next coordinator.
    pub fn next_dir(&mut self) -> PathBuf {
        self.count += 1;
        self.folder.join(format!("coordinator-{}", self.count))
    }

    /// The command that starts a joining coordinator in this directory.
    pub fn joining(&self, dir: &Path) -> Command {
        let token = format!("@{}", show(&self.members[0].dir.join("coordinator.token")));
        let addresses = self.addresses();
        let join = ["--join", &token, "--coordinators", &addresses];
        self.coordinator(&[&["--dir", show(dir)], &join[..]].concat())
    }

    /// The command that starts a coordinator again in its directory, at its address.
    pub fn again(&self, dir: &Path, address: SocketAddr) -> Command {
        let listen = address.to_string();
        self.coordinator(&["--dir", show(dir), "--listen", &listen])
    }

    /// Starts a coordinator again that has ended, or kills it first. Adds to its environment.
    pub fn restart(&mut self, at: usize, environment: &[(&str, &str)]) {
        let Member { dir, address, program, .. } = self.members.remove(at);
        drop(program);
        let mut command = self.again(&dir, address);
        command.envs(environment.iter().copied());
        let again = Member::listening(command, dir).expect("it listens");
        self.members.insert(at, again);
    }

    /// The coordinators' addresses, as an argument.
    pub fn addresses(&self) -> String {
        let addresses = self.members.iter().map(|member| member.address.to_string());
        addresses.collect::<Vec<_>>().join(",")
    }

    /// The leader's place, once there is one and `voters` coordinators have a vote.
    pub fn leader(&self, voters: usize) -> usize {
        until("a leader", || self.members.iter().position(|member| member.leads(voters)))
    }

    /// Whether one of them leads, and `voters` coordinators have a vote.
    pub fn is_led(&self, voters: usize) -> bool {
        self.members.iter().any(|member| member.leads(voters))
    }

    /// The leader's place, once it is another coordinator than `old`.
    pub fn leader_beside(&self, old: usize, voters: usize) -> usize {
        until("another leader", || {
            let mut others = self.members.iter().enumerate().filter(|(at, _)| *at != old);
            others.find_map(|(at, member)| member.leads(voters).then_some(at))
        })
    }

    /// Transfers leadership to this coordinator.
    pub fn transfer(&self, to: usize, voters: usize) {
        let heir = format!(r#"{{"to": {}}}"#, self.members[to].id());
        until("it leads", || {
            let leader = self.leader(voters);
            (leader == to).then_some(()).or_else(|| {
                self.members[leader].look("POST", "/api/v1/coordinators/transfer", &heir)?;
                None
            })
        });
    }

    /// Repeats a command until a coordinator has answered.
    pub fn command(&mut self, command: OperatorCommand) -> Result<(), String> {
        self.command_with(command, None)
    }

    /// As [`CoordinatorGroup::command`], with one more coordinator to ask.
    pub fn command_with(
        &mut self,
        command: OperatorCommand,
        another: Option<&Member>,
    ) -> Result<(), String> {
        self.commands += 1;
        let id = RequestId { client: 7, number: self.commands };
        let all = || self.members.iter().chain(another);
        until("an answer", || all().find_map(|member| member.command(id, &command)))
    }

    /// The id of the newest run.
    pub fn newest_run(&self) -> RunId {
        until("a run", || self.members.iter().filter_map(Member::watch).find_map(|it| it.run))
    }

    /// Waits until the run is over. Returns its outcome.
    pub fn outcome(&self) -> Outcome {
        until("the end of the run", || {
            let updates = self.members.iter().filter_map(Member::watch);
            updates.map(|update| update.outcome).find(|outcome| *outcome != Outcome::Running)
        })
    }

    /// Waits until all coordinators know as much as the leader.
    pub fn until_agreed(&self, voters: usize) {
        self.leader(voters);
        until("all know the same", || self.is_agreed().then_some(()));
    }

    /// Whether all coordinators run, and know the same.
    pub fn is_agreed(&self) -> bool {
        let known: Option<Vec<_>> = self.members.iter().map(Member::history).collect();
        known.is_some_and(|known| known.windows(2).all(|pair| pair[0] == pair[1]))
    }

    /// Waits until this coordinator knows what the leader knows by now. More may happen meanwhile.
    pub fn until_caught_up(&self, at: usize, voters: usize) {
        let known = until("what is known", || self.members[self.leader(voters)].history());
        let known = known.map(|all| all.len());
        until("it knows what the others know", || {
            let knows = self.members[at].history()?.map(|all| all.len());
            (knows[0] >= known[0] && knows[1] >= known[1]).then_some(())
        });
    }
}

impl Member {
    /// Starts a coordinator. None if it ends before it listens.
    pub fn listening(command: Command, dir: PathBuf) -> Option<Self> {
        let mut program = Program::start(command);
        let line = program.line()?;
        let ready: Value = serde_json::from_str(&line).expect("JSON");
        let address = ready["address"].as_str()?.parse().ok()?;
        let api = ready["api"].as_str()?.strip_prefix("http://")?.parse().ok()?;
        Some(Self { dir, address, api, program })
    }

    /// Waits for its id.
    pub fn id(&self) -> CoordinatorId {
        until("an id", || {
            let all = self.coordinators();
            let own = all.iter().find(|view| view["address"] == self.address.to_string());
            own?["id"].as_u64().map(CoordinatorId)
        })
    }

    /// Waits for its end.
    pub fn end(self) -> Ended {
        self.program.end()
    }

    /// The page at a path of its API, if it answers: the status, and the body.
    pub fn look(&self, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(self.api).ok()?;
        stream.set_read_timeout(Some(HTTP_ANSWER_TIMEOUT)).ok()?;
        let token = fs::read_to_string(self.dir.join("api.token")).unwrap_or_default();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\
             authorization: Bearer {}\r\ncontent-length: {}\r\n\r\n{body}",
            self.api,
            token.trim(),
            body.len()
        );
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let status = answer.split(' ').nth(1)?.parse().ok()?;
        Some((status, answer.split_once("\r\n\r\n")?.1.to_string()))
    }

    fn json(&self, path: &str) -> Option<Value> {
        serde_json::from_str(&self.look("GET", path, "")?.1).ok()
    }

    /// Whether it sees itself as the leader, with `voters` coordinators that have a vote.
    fn leads(&self, voters: usize) -> bool {
        let all = self.coordinators();
        let own = all.iter().find(|view| view["address"] == self.address.to_string());
        let leads = own.is_some_and(|own| own["leader"] == true && !own["term"].is_null());
        leads && all.iter().filter(|view| view["voter"] == true).count() == voters
    }

    /// The coordinators, as it knows them. Empty if it does not answer.
    fn coordinators(&self) -> Vec<Value> {
        let known = self.json("/api/v1/coordinators?stale=true");
        known.and_then(|known| Some(known["coordinators"].as_array()?.clone())).unwrap_or_default()
    }

    /// All events and lines that it knows.
    pub fn history(&self) -> Option<[Vec<Value>; 2]> {
        let page = |name: &str, after: u64| {
            let page = self.json(&format!("/api/v1/{name}?after={after}&stale=true"))?;
            let items = page[name].as_array()?.clone();
            Some((items, page["after"].as_u64()?, page["more"] == true))
        };
        let all = |name: &str| {
            let (mut all, mut after, mut more) = page(name, 0)?;
            while more {
                let (items, newest, rest) = page(name, after)?;
                all.extend(items);
                (after, more) = (newest, rest);
            }
            Some(all)
        };
        Some([all("events")?, all("metrics")?])
    }

    fn command(&self, id: RequestId, command: &OperatorCommand) -> Option<Result<(), String>> {
        self.ask(Message::Request { id, command: command.clone() }, |message| match message {
            Message::Answer { id: of, refusal, .. } if of == id => {
                Some(Some(refusal.map_or(Ok(()), |reason| Err(reason.to_string()))))
            }
            Message::Coordinators { leader, members, .. } => {
                let own = members.iter().find(|view| view.address == self.address);
                (own.is_none_or(|own| leader != Some(own.id))).then_some(None)
            }
            _ => None,
        })
    }

    /// The update for an operator that has seen every line, if it answers.
    fn watch(&self) -> Option<Update> {
        let watch = Message::Watch { run: None, step: Step(u64::MAX), event: 0 };
        self.ask(watch, |message| match message {
            Message::Update(update) => Some(Some(update)),
            _ => None,
        })
    }

    /// Sends a message as an operator, and waits a while. `wanted` finds the answer, or sees that
    /// it will not come.
    fn ask<T>(&self, message: Message, wanted: impl Fn(Message) -> Option<Option<T>>) -> Option<T> {
        let credentials = Credentials::load(&self.dir.join("operator")).ok()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let settings = Settings::for_address(self.address.ip());
            let anywhere = (Ipv4Addr::LOCALHOST, 0).into();
            let endpoint = Endpoint::bind(anywhere, &credentials, settings, None).ok()?;
            let expected = Expected::Role(Role::Coordinator);
            let asked = async {
                let link = endpoint.connect(self.address, &expected).await.ok()?;
                link.send(message).ok()?;
                hear(&link, wanted).await
            };
            timeout(ANSWER_TIMEOUT, asked).await.ok().flatten()
        })
    }
}

async fn hear<T>(link: &Link, wanted: impl Fn(Message) -> Option<Option<T>>) -> Option<T> {
    loop {
        if let Some(answer) = wanted(link.receive().await.ok()?) {
            return answer;
        }
    }
}
