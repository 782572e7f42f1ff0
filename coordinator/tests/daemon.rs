//! A coordinator in a thread and real links on loopback: a run from Hello to the end.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use everstep_coordinator::daemon::{CoordinatorError, Options, run};
use everstep_transport::identity::{Credentials, JoinToken, Role};
use everstep_transport::protocol::message::{Fingerprint, Heartbeat, Registration};
use everstep_transport::protocol::outcome::{Outcome, Update, WorkerResult};
use everstep_transport::protocol::{
    Generation, Message, MetricsLine, Record, Shard, Step, WorkerId, codec, exemplars,
};
use everstep_transport::quic::{Endpoint, Expected, Link, Settings, enrol};

fn anywhere() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

fn options(dir: &Path, bootstrap: bool) -> Options {
    Options { dir: dir.to_path_buf(), listen: anywhere(), bootstrap }
}

/// A coordinator, and an operator who has submitted the run of the examples.
struct Cluster {
    dir: tempfile::TempDir,
    address: SocketAddr,
    operator: Node,
}

/// A peer of the coordinator. The link lives as long as its endpoint.
struct Node {
    link: Link,
    _endpoint: Endpoint,
}

impl Node {
    async fn connect(address: SocketAddr, credentials: &Credentials) -> Self {
        let settings = Settings::for_address(address.ip());
        let endpoint = Endpoint::bind(anywhere(), credentials, settings, None).expect("bound");
        let coordinator = Expected::Role(Role::Coordinator);
        let link = endpoint.connect(address, &coordinator).await.expect("connected");
        Self { link, _endpoint: endpoint }
    }

    fn say(&self, message: Message) {
        self.link.send(message).expect("queued");
    }

    async fn hear(&self) -> Message {
        let message = tokio::time::timeout(Duration::from_secs(10), self.link.receive()).await;
        message.expect("an answer in time").expect("the link lives")
    }
}

/// A worker that is a member, and the record that says so.
struct Worker {
    node: Node,
    id: WorkerId,
}

impl Worker {
    fn beat(&self, lines: Vec<MetricsLine>) {
        let (worker, generation, promised) = (self.id, Generation(1), Generation(1));
        let (step, unreachable) = (Step(0), Vec::new());
        let heartbeat = Heartbeat { worker, generation, promised, step, lines, unreachable };
        self.node.say(Message::Heartbeat(heartbeat));
    }

    async fn announced(&self) -> Record {
        match self.node.hear().await {
            Message::Announce(record) => record,
            other => panic!("not announced but {other:?}"),
        }
    }
}

impl Cluster {
    async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let (tell, told) = mpsc::channel();
        let options = options(dir.path(), true);
        // It ends with the process of this test.
        std::thread::spawn(move || run(options, |address| tell.send(address).expect("told")));
        let address = told.recv().expect("the coordinator is ready");
        let credentials = Credentials::load(&dir.path().join("operator")).expect("credentials");
        let operator = Node::connect(address, &credentials).await;
        operator.say(Message::Submit(exemplars::run()));
        Self { dir, address, operator }
    }

    /// Enrols with the token, says Hello and registers.
    async fn worker(&self) -> Worker {
        let token = std::fs::read_to_string(self.dir.path().join("join.token")).expect("a token");
        let token: JoinToken = token.parse().expect("a token");
        let credentials = enrol(self.address, &token).await.expect("enrolled");
        let node = Node::connect(self.address, &credentials).await;
        node.say(Message::Hello { schema: codec::schema() });
        assert_eq!(node.hear().await, Message::Welcome { run: exemplars::run() });
        let fingerprint =
            Fingerprint { model: [1; 32], data: [2; 32], parameters: 900, shards: 2, samples: 99 };
        let (incarnation, address, probe) = (1, anywhere(), 7);
        let registration = Registration { incarnation, address, fingerprint, probe };
        node.say(Message::Register(registration));
        match node.hear().await {
            Message::Registered { worker } => Worker { node, id: worker },
            other => panic!("not registered but {other:?}"),
        }
    }

    async fn watch(&self) -> Update {
        self.operator.say(Message::Watch { step: Step(0), event: 0 });
        match self.operator.hear().await {
            Message::Update(update) => update,
            other => panic!("no update but {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_run_goes_from_hello_to_complete() {
    let cluster = Cluster::start().await;
    let workers = [cluster.worker().await, cluster.worker().await];
    for worker in &workers {
        let record = worker.announced().await;
        assert_eq!((record.number, record.world_size()), (Generation(1), 2));
    }
    let line = |step| MetricsLine { step: Step(step), ..MetricsLine::default() };
    workers[0].beat((1..=10).map(line).collect());
    let written = Message::HeartbeatAnswer { generation: Generation(1), written: Step(10) };
    assert_eq!(workers[0].node.hear().await, written);
    for worker in &workers {
        let digests = vec![(Shard(0), [3; 32]), (Shard(1), [4; 32])];
        let result = WorkerResult { worker: worker.id, digests, ..WorkerResult::default() };
        worker.node.say(Message::Finished(result));
    }
    for worker in &workers {
        assert_eq!(worker.node.hear().await, Message::Dismiss);
    }
    let update = cluster.watch().await;
    assert_eq!(update.lines.len(), 10);
    assert!(matches!(update.outcome, Outcome::Complete(results) if results.len() == 2));
}

#[tokio::test]
async fn a_dropped_worker_fails_the_run_within_five_seconds() {
    let cluster = Cluster::start().await;
    let alive = cluster.worker().await;
    let dropped = cluster.worker().await;
    alive.announced().await;
    let start = Instant::now();
    drop(dropped);
    let reason = loop {
        alive.beat(Vec::new());
        if let Outcome::Failed { reason, .. } = cluster.watch().await.outcome {
            break reason;
        }
        assert!(start.elapsed() < Duration::from_secs(5), "the loss was not noticed");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert!(reason.contains("(worker 3) was lost"), "{reason}");
}

#[test]
fn a_cluster_is_made_once_and_its_secrets_are_private() {
    let dir = tempfile::tempdir().expect("a directory");
    let nothing = run(options(dir.path(), false), |_| ()).expect_err("there is no cluster");
    assert!(matches!(nothing, CoordinatorError::NothingThere(_)));
    assert!(nothing.to_string().starts_with("nothing to start from in"));
    // The address is not of this machine: what was made stays.
    let listen = SocketAddr::from(([192, 0, 2, 1], 1));
    let foreign = Options { listen, ..options(dir.path(), true) };
    let unbound = run(foreign, |_| ()).expect_err("the address is not of this machine");
    assert!(matches!(unbound, CoordinatorError::Bind(_)), "{unbound}");
    for secret in ["join.token", "operator/node.key", "authority/authority.key"] {
        let mode = dir.path().join(secret).metadata().expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{secret}");
    }
    let again = run(options(dir.path(), true), |_| ()).expect_err("there is a cluster");
    assert!(matches!(again, CoordinatorError::AlreadyThere(_)));
}
