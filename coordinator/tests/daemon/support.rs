//! The fixture: a coordinator that a test can kill, and peers that send exactly the test's
//! messages.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use everstep_coordinator::daemon::{Addresses, CoordinatorOptions, Start, run};
use everstep_coordinator::http::{self, ApiPort};
use everstep_transport::identity::{Credentials, JoinToken, Role};
use everstep_transport::protocol::message::{Fingerprint, Heartbeat, Registration};
use everstep_transport::protocol::outcome::{Outcome, Update, WorkerResult};
use everstep_transport::protocol::step::Status;
use everstep_transport::protocol::{
    CoordinatorId, CoordinatorView, Device, Generation, Message, MetricsLine, ModelPlace,
    OperatorCommand, Record, RequestId, RunSpec, Shard, Step, Term, WorkerId, exemplars,
};
use everstep_transport::quic::{ConnectError, Endpoint, Expected, Link, Settings, enrol};

use crate::client::look;

const DIR: &str = "EVERSTEP_TEST_DIR";
const LISTEN: &str = "EVERSTEP_TEST_LISTEN";
const BOOTSTRAP: &str = "EVERSTEP_TEST_BOOTSTRAP";
/// The value of [`BOOTSTRAP`] for a cluster that exists for one run.
const EPHEMERAL: &str = "ephemeral";
const LASTING: &str = "lasting";
const JOIN: &str = "EVERSTEP_TEST_JOIN";
const COORDINATORS: &str = "EVERSTEP_TEST_COORDINATORS";
const HTTP_TOKEN: &str = "EVERSTEP_TEST_HTTP_TOKEN";
const HTTP_READ_TOKEN: &str = "EVERSTEP_TEST_HTTP_READ_TOKEN";
/// What the process prints before its addresses.
const LISTENS: &str = "it listens on ";
/// What the process prints before how it ended.
const ENDED: &str = "it ended: ";
/// Longer than anything takes here, however busy the machine is.
const SUPPORT_TIMEOUT: Duration = Duration::from_secs(20);

/// Any free port.
pub fn anywhere() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

/// Runs a coordinator if the environment says so.
pub fn be_a_coordinator() {
    let (Some(dir), Ok(listen)) = (std::env::var_os(DIR), std::env::var(LISTEN)) else { return };
    let listen = listen.parse().expect("an address");
    let start = match (std::env::var_os(BOOTSTRAP), std::env::var(JOIN)) {
        (Some(kind), _) => Start::Bootstrap { ephemeral: kind == EPHEMERAL },
        (None, Ok(token)) => {
            let named = std::env::var(COORDINATORS).expect("addresses");
            Start::Join { token, coordinators: vec![named.parse().expect("an address")] }
        }
        (None, Err(_)) => Start::Again,
    };
    let token = std::env::var_os(HTTP_TOKEN).map(Into::into);
    let read_token = std::env::var_os(HTTP_READ_TOKEN).map(Into::into);
    let http = Some(http::HttpOptions { listen: Some(anywhere()), token, read_token });
    let options = CoordinatorOptions { dir: dir.into(), listen, start, http };
    let ready = |Addresses { links, api }| println!("{LISTENS}{links} {}", api.expect("asked for"));
    match run(options, &mut ApiPort::default(), ready) {
        Ok(ended) => println!("{ENDED}{ended:?}"),
        Err(error) => println!("{ENDED}{error}"),
    }
}

/// A coordinator's process, with its output. Dropping it kills the process.
struct Process {
    child: Child,
    /// The rest of its output.
    rest: BufReader<ChildStdout>,
    address: SocketAddr,
    api: SocketAddr,
}

impl Process {
    fn start(dir: &Path, listen: SocketAddr, bootstrap: bool, token: Option<&Path>) -> Self {
        let bootstrap = bootstrap.then_some((BOOTSTRAP, OsStr::new(EPHEMERAL)));
        let token = token.map(|path| (HTTP_TOKEN, path.as_os_str()));
        Self::start_with(dir, listen, bootstrap.into_iter().chain(token))
    }

    /// For a moment another test, which took any free port, may have the port that a coordinator
    /// has just left.
    fn start_with<'e>(
        dir: &Path,
        listen: SocketAddr,
        environment: impl IntoIterator<Item = (&'e str, &'e OsStr)>,
    ) -> Self {
        let environment: Vec<_> = environment.into_iter().collect();
        for _ in 0..100 {
            match Self::try_start(dir, listen, &environment) {
                Err(said) if said.contains("in use") => thread::sleep(Duration::from_millis(50)),
                outcome => {
                    return outcome.unwrap_or_else(|said| panic!("it does not listen: {said}"));
                }
            }
        }
        panic!("{listen} stays in use");
    }

    /// Returns all output of the process instead if it ended.
    fn try_start(
        dir: &Path,
        listen: SocketAddr,
        environment: &[(&str, &OsStr)],
    ) -> Result<Self, String> {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["a_coordinator_runs_where_another_test_wants_one", "--nocapture"]);
        command.env(DIR, dir).env(LISTEN, listen.to_string());
        command.envs(environment.iter().copied());
        let mut child = command.stdout(Stdio::piped()).spawn().expect("a process");
        let mut rest = BufReader::new(child.stdout.take().expect("piped"));
        let mut said = String::new();
        let addresses = rest.by_ref().lines().find_map(|line| {
            let line = line.expect("text");
            said += &format!("{line}\n");
            let (links, api) = line.split_once(LISTENS)?.1.split_once(' ')?;
            Some((links.parse().ok()?, api.parse().ok()?))
        });
        let Some((address, api)) = addresses else {
            child.wait().expect("it ends");
            return Err(said);
        };
        Ok(Self { child, rest, address, api })
    }

    /// Waits until it ends by itself. Returns how it ended.
    fn end(mut self) -> String {
        let mut said = String::new();
        self.rest.read_to_string(&mut said).expect("text");
        let (_, how) = said.split_once(ENDED).expect("it says how it ended");
        how.lines().next().unwrap_or_default().to_string()
    }
}

impl Drop for Process {
    /// Kills the process with SIGKILL.
    fn drop(&mut self) {
        let _ = self.child.kill(); // an error means that it has ended
        self.child.wait().expect("it ends");
    }
}

/// One of several coordinators. Dropping it kills its process.
pub struct Member {
    pub address: SocketAddr,
    pub api: SocketAddr,
    process: Process,
    dir: Arc<tempfile::TempDir>,
}

impl Member {
    /// Another coordinator that has joined the cluster of this one.
    pub fn joined_by(&self) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let token = std::fs::read_to_string(self.path("coordinator.token")).expect("a token");
        let named = self.address.to_string();
        let environment =
            [(JOIN, OsStr::new(token.trim())), (COORDINATORS, OsStr::new(named.as_str()))];
        Self::of(Process::start_with(dir.path(), anywhere(), environment), Arc::new(dir))
    }

    /// Kills it, and starts it again in its directory, at its address.
    pub fn restarted(self) -> Self {
        let Self { address, process, dir, .. } = self;
        drop(process);
        Self::of(Process::start(dir.path(), address, false, None), dir)
    }

    /// Kills it, copies its directory, and starts it again. Returns the copy.
    pub fn backed_up(self) -> (Self, tempfile::TempDir) {
        let Self { address, process, dir, .. } = self;
        drop(process);
        let copy = tempfile::tempdir().expect("a directory");
        copy_files(dir.path(), copy.path());
        (Self::of(Process::start(dir.path(), address, false, None), dir), copy)
    }

    /// Kills it, and starts it again with the files of a copy instead of its own.
    pub fn restored(self, copy: &Path) -> Self {
        let Self { address, process, dir, .. } = self;
        drop(process);
        copy_files(copy, dir.path());
        Self::of(Process::start(dir.path(), address, false, None), dir)
    }

    /// Kills it. Returns its directory.
    pub fn killed(self) -> Arc<tempfile::TempDir> {
        let Self { process, dir, .. } = self;
        drop(process);
        dir
    }

    /// Sends SIGKILL, and does not wait for the consequences.
    pub fn strike(&mut self) {
        self.process.child.kill().expect("it was started here");
    }

    /// Sends SIGTERM and waits until it has ended. Returns how it ended.
    pub fn dismissed(self) -> String {
        self.signal("TERM");
        self.process.end()
    }

    /// Waits until it ends by itself. Returns how it ended.
    pub fn ended(self) -> String {
        self.process.end()
    }

    /// Its id, according to its API.
    pub async fn id(&self) -> CoordinatorId {
        let known = look(self.api, "/api/v1/coordinators?stale=true").await.json();
        let all = known["coordinators"].as_array().expect("a list");
        let own = all.iter().find(|it| it["address"] == self.address.to_string());
        let id = own.and_then(|own| own["id"].as_u64()).map(CoordinatorId);
        id.unwrap_or_else(|| panic!("unknown: {known}"))
    }

    /// Sends its process a signal, by its name.
    pub fn signal(&self, name: &str) {
        let command = format!("kill -{name} {}", self.process.child.id());
        let sent = Command::new("sh").args(["-c", &command]).status().expect("a shell");
        assert!(sent.success(), "{command}");
    }

    /// The path of a file of the coordinator.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn of(process: Process, dir: Arc<tempfile::TempDir>) -> Self {
        Self { address: process.address, api: process.api, process, dir }
    }
}

fn copy_files(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from.join(".")).arg(to).status();
    assert!(copied.expect("cp").success(), "{} to {}", from.display(), to.display());
}

/// A coordinator, and an operator.
pub struct Cluster {
    pub address: SocketAddr,
    pub api: SocketAddr,
    operator: Node,
    process: Option<Process>,
    dir: Arc<tempfile::TempDir>,
}

impl Cluster {
    /// A cluster with the run of the examples.
    pub async fn start() -> Self {
        let cluster = Self::idle(None).await;
        cluster.submit(exemplars::run()).await;
        cluster
    }

    /// Submits a run. A coordinator that has just begun may not lead yet, and says so when it does.
    async fn submit(&self, run: RunSpec) {
        let (id, command) =
            (RequestId { client: 1, number: 1 }, OperatorCommand::Submit(run.into()));
        let request = Message::Request { id, command };
        self.operator.say(request.clone());
        loop {
            let heard = tokio::time::timeout(SUPPORT_TIMEOUT, self.operator.link.receive()).await;
            match heard.expect("an answer in time").expect("a message") {
                Message::Coordinators { .. } => self.operator.say(request.clone()),
                Message::Answer { refusal: None, .. } => return,
                other => panic!("not submitted but {other:?}"),
            }
        }
    }

    /// A cluster without a run. With a token, its API answers no client without it.
    pub async fn idle(token: Option<&Path>) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let process = Process::start(dir.path(), anywhere(), true, token);
        Self::of(process, dir).await
    }

    /// A cluster without a run, for as many runs as a test submits.
    pub async fn lasting() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let lasting = [(BOOTSTRAP, OsStr::new(LASTING))];
        Self::of(Process::start_with(dir.path(), anywhere(), lasting), dir).await
    }

    /// The same, with an API that is read with the token in this file.
    pub async fn read_with(token: &Path) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let environment = [(BOOTSTRAP, OsStr::new(LASTING)), (HTTP_READ_TOKEN, token.as_os_str())];
        Self::of(Process::start_with(dir.path(), anywhere(), environment), dir).await
    }

    async fn of(process: Process, dir: tempfile::TempDir) -> Self {
        let (address, api) = (process.address, process.api);
        let operator = operator(dir.path(), address).await;
        Self { address, api, operator, process: Some(process), dir: Arc::new(dir) }
    }

    /// The founder, as one of several from now on.
    pub fn take_member(&mut self) -> Member {
        Member::of(self.process.take().expect("it runs"), self.dir.clone())
    }

    /// The token that changes need.
    pub fn api_token(&self) -> String {
        std::fs::read_to_string(self.path("api.token")).expect("a token")
    }

    /// The path of a file of the coordinator.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Kills the coordinator, and starts it again in its directory, at its address.
    pub async fn restart(&mut self) {
        self.process = None;
        let process = Process::start(self.dir.path(), self.address, false, None);
        self.api = process.api;
        self.process = Some(process);
        self.operator = operator(self.dir.path(), self.address).await;
    }

    /// Enrols with the token, says Hello and registers.
    pub async fn worker(&self) -> Worker {
        let credentials = self.enrol().await;
        let node = Node::connect(self.address, &credentials).await;
        node.say(Message::Hello { worker: None });
        match node.hear().await {
            Message::Welcome { run, .. } => assert_eq!(run, exemplars::run()),
            other => panic!("not welcome but {other:?}"),
        }
        let fingerprint =
            Fingerprint { model: [1; 32], data: [2; 32], parameters: 900, shards: 2, samples: 99 };
        let (incarnation, address, probe) = (1, anywhere(), 7);
        let (zone, device, model) = (None, Device::default(), Some(place()));
        let registration = Registration {
            incarnation,
            address,
            fingerprint,
            probe,
            zone,
            device,
            model,
            host: None,
            machine: None,
        };
        node.say(Message::Register(registration));
        match node.hear().await {
            Message::Registered { worker, .. } => Worker { node, id: worker, credentials },
            other => panic!("not registered but {other:?}"),
        }
    }

    /// The credentials that a node gets for a token.
    pub async fn enrol(&self) -> Credentials {
        let token = std::fs::read_to_string(self.dir.path().join("join.token")).expect("a token");
        let token: JoinToken = token.parse().expect("a token");
        enrol(self.address, &token, Role::Worker).await.expect("enrolled")
    }

    /// Asks for a change, as the operator of the coordinator's folder. Repeats the request until an
    /// answer comes: a founder may not lead yet, and an operator that revokes itself is cut off.
    pub async fn command(&self, number: u64, command: OperatorCommand) -> Option<String> {
        let (id, start) = (RequestId { client: 2, number }, Instant::now());
        loop {
            let held = Credentials::load(&self.path("operator")).expect("credentials");
            if let Ok(operator) = Node::call(self.address, &held).await {
                let request = Message::Request { id, command: command.clone() };
                let asked = tokio::time::timeout(Duration::from_secs(1), operator.ask(request));
                if let Ok(Some(Message::Answer { refusal, .. })) = asked.await {
                    return refusal.map(|reason| reason.to_string());
                }
            }
            assert!(start.elapsed() < SUPPORT_TIMEOUT, "no answer");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The whole update of a watcher. A coordinator that has just begun may not lead yet.
    pub async fn watch(&self) -> Update {
        let start = Instant::now();
        loop {
            let operator = operator(self.dir.path(), self.address).await;
            let watch = Message::Watch { run: None, step: Step(0), event: 0 };
            if let Some(Message::Update(update)) = operator.ask(watch).await {
                return update;
            }
            assert!(start.elapsed() < SUPPORT_TIMEOUT, "it does not lead");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The whole update of a watcher of a run that is over. A coordinator that has just begun may
    /// know the last entries of its log only when it leads.
    pub async fn watch_to_the_end(&self) -> Update {
        let start = Instant::now();
        loop {
            let update = self.watch().await;
            if update.outcome != Outcome::Running {
                return update;
            }
            assert!(start.elapsed() < SUPPORT_TIMEOUT, "the run goes on");
        }
    }
}

async fn operator(dir: &Path, address: SocketAddr) -> Node {
    let credentials = Credentials::load(&dir.join("operator")).expect("credentials");
    Node::connect(address, &credentials).await
}

/// A peer of the coordinator. The link lives as long as its endpoint.
pub struct Node {
    pub link: Link,
    _endpoint: Endpoint,
}

impl Node {
    pub async fn connect(address: SocketAddr, credentials: &Credentials) -> Self {
        Self::call(address, credentials).await.expect("connected")
    }

    /// The same, but it may fail.
    pub async fn call(
        address: SocketAddr,
        credentials: &Credentials,
    ) -> Result<Self, ConnectError> {
        let settings = Settings::for_address(address.ip());
        let endpoint = Endpoint::bind(anywhere(), credentials, settings, None).expect("bound");
        let coordinator = Expected::Role(Role::Coordinator);
        let link = endpoint.connect(address, &coordinator).await?;
        Ok(Self { link, _endpoint: endpoint })
    }

    pub fn say(&self, message: Message) {
        self.link.send(message).expect("queued");
    }

    /// The answer. None if another coordinator leads, or none does. One link takes one question at
    /// a time: a late answer would pass for the answer to the next question.
    pub async fn ask(&self, question: Message) -> Option<Message> {
        self.say(question);
        loop {
            let message = tokio::time::timeout(SUPPORT_TIMEOUT, self.link.receive()).await;
            match message.expect("an answer in time").ok()? {
                Message::Coordinators { leader, members, .. } => {
                    let asked = |view: &CoordinatorView| view.address == self.link.remote_address();
                    let asked = members.iter().find(|view| asked(view)).map(|view| view.id);
                    if leader.is_none() || leader != asked {
                        return None;
                    }
                }
                message => return Some(message),
            }
        }
    }

    /// The next message that is not just a list of the coordinators.
    pub async fn hear(&self) -> Message {
        loop {
            let message = tokio::time::timeout(SUPPORT_TIMEOUT, self.link.receive()).await;
            match message.expect("an answer in time").expect("the link lives") {
                Message::Coordinators { .. } | Message::Write { .. } => {}
                message => return message,
            }
        }
    }
}

/// The place where every worker writes the model.
pub fn place() -> ModelPlace {
    ModelPlace { host: "node".into(), path: "/runs/model.safetensors".into() }
}

/// A registered worker.
pub struct Worker {
    pub node: Node,
    pub id: WorkerId,
    pub credentials: Credentials,
}

impl Worker {
    /// Promises each number that the coordinator asks for, with the initial state of every shard,
    /// until a record lists this worker.
    pub async fn enters(&self) -> Record {
        loop {
            match self.node.hear().await {
                Message::Pause { term, number } => self.promise(term, number),
                Message::Announce(record) if record.rank(self.id).is_some() => return record,
                Message::Announce(_) | Message::HeartbeatAnswer { .. } => {}
                other => panic!("not asked to enter but {other:?}"),
            }
        }
    }

    fn promise(&self, term: Term, number: Generation) {
        let versions = [0, 1].map(|shard| (Shard(shard), Step(0), Generation(0))).to_vec();
        let (commit, under_way, prepared) = (None, None, Vec::new());
        let unreachable = Vec::new();
        let status = Status { term, number, commit, prepared, versions, under_way, unreachable };
        self.node.say(Message::Status(status));
    }

    /// Sends a heartbeat of the first generation with these lines. Once they are written, returns
    /// the last written step, and the number of the generation in the coordinator's answer.
    pub async fn beat(&self, lines: Vec<MetricsLine>) -> (Step, Generation) {
        let step = lines.last().map_or(Step(0), |line| line.step);
        self.lives(lines);
        loop {
            match self.node.hear().await {
                Message::HeartbeatAnswer { generation, written, .. } if written >= step => {
                    return (written, generation);
                }
                Message::HeartbeatAnswer { .. } => {}
                Message::Pause { .. } => {}
                other => panic!("no answer but {other:?}"),
            }
        }
    }

    /// Sends a heartbeat of the first generation, with these lines.
    pub fn lives(&self, lines: Vec<MetricsLine>) {
        let (worker, generation, promised) = (self.id, Generation(1), Generation(1));
        let step = lines.last().map_or(Step(0), |line| line.step);
        let (held, ready, telemetry) = (false, false, None);
        let unreachable = Vec::new();
        let heartbeat = Heartbeat {
            worker,
            generation,
            promised,
            step,
            lines,
            unreachable,
            held,
            ready,
            behind: 0,
            unread: 0,
            computing: None,
            shard_us: 0,
            telemetry,
            unwritten: None,
            store_error: None,
        };
        self.node.say(Message::Heartbeat(heartbeat));
    }

    /// Reports that it has trained the last step.
    pub fn finishes(&self) {
        let digests = vec![(Shard(0), [3; 32]), (Shard(1), [4; 32])];
        let result = WorkerResult { worker: self.id, digests, ..WorkerResult::default() };
        self.node.say(Message::Written(place()));
        self.node.say(Message::Finished(result));
    }

    /// Comes again on a new link, with its id. Returns the answer.
    pub async fn return_to(&mut self, address: SocketAddr) -> Message {
        self.node = Node::connect(address, &self.credentials).await;
        self.node.say(Message::Hello { worker: Some(self.id) });
        self.node.hear().await
    }
}

/// Lines of these steps.
pub fn lines(steps: std::ops::RangeInclusive<u64>) -> Vec<MetricsLine> {
    let line = |step| MetricsLine { step: Step(step), ..MetricsLine::default() };
    steps.map(line).collect()
}
