//! The common data of the tests of answers: a coordinator in the middle of a run.

use everstep_transport::protocol::figures::RunFigures;
use everstep_transport::protocol::outcome::{WorkerState, WorkerView};
use everstep_transport::protocol::{
    CheckpointSpec, Device, Generation, MetricsLine, NodeName, OnFailure, Rank, RunId, RunSpec,
    Shard, Step, Term, WorkerId, exemplars,
};

use super::*;

fn worker(id: u64, rank: u32) -> WorkerView {
    WorkerView {
        worker: WorkerId(id),
        number: rank + 1,
        name: NodeName::parse(&format!("worker-{id}")).expect("a name"),
        address: ([127, 0, 0, 1], 40_000 + id as u16).into(),
        rank: Some(Rank(rank)),
        data_shards: 4,
        zone: None,
        device: Device::default(),
        telemetry: None,
        state: WorkerState::Training,
        retained: 0,
        waits_for: None,
        host: None,
        preemption: None,
    }
}

fn on_gpu(view: WorkerView) -> WorkerView {
    WorkerView { device: exemplars::device(), telemetry: Some(exemplars::telemetry()), ..view }
}

/// The run began with three workers. Two of them are at step 812 of 1,000.
pub(crate) fn view() -> ClusterView {
    let (path, on_failure) = ("/store".into(), OnFailure::Continue);
    let spec = CheckpointSpec { path, every: 100, keep: 3, keep_every: 0, on_failure };
    let checkpoint = Some(spec);
    let run = RunSpec { steps: 1_000, start_workers: 3, checkpoint, ..exemplars::run() };
    let line = MetricsLine {
        step: Step(812),
        loss: 2.5,
        grad_norm: 0.25,
        loss_scale: 32_768,
        learning_rate: 1e-3,
        seconds: 0.125,
        ..MetricsLine::default()
    };
    ClusterView {
        leads: Some(Term(3)),
        run: Some(run),
        generation: Generation(4),
        world_size: 2,
        changing: false,
        line: Some(line),
        workers: vec![on_gpu(worker(5, 0)), worker(9, 1)],
        waiting: None,
        paused: None,
        closes: false,
        owners_awaited: None,
        model_awaited: None,
        store_error: None,
        checkpoint: Step(800),
        lacks_checkpoint: None,
        restores: None,
        standstill: None,
        unable: Vec::new(),
        idle: 0,
        building: 0,
        outage: None,
        now_unix_ms: 90_000,
        unreachable: Vec::new(),
        divergence: None,
        end: None,
        ignored: 7,
    }
}

/// The same, with the sums of the history.
pub(super) fn overview() -> Overview {
    let lapse = Lapse { first: Shard(4), count: 2, from_unix_ms: 77, until_unix_ms: None };
    let mut tally = Tally { registrations: 3, steps: 812, tokens: 415_744, ..Tally::default() };
    tally.losses.insert("link", 1);
    tally.generations.insert("start", 1);
    tally.generations.insert("lost", 3);
    [0.004, 0.006, 3.0].into_iter().for_each(|seconds| tally.log_write.observe(seconds));
    tally.stalls.observe(0.125);
    [0.125, 0.5].into_iter().for_each(|seconds| tally.step_times.observe(seconds));
    let links = vec![("coordinator", 0), ("operator", 1), ("worker", 2)];
    Overview {
        cluster: view(),
        tally,
        under_protected: vec![lapse],
        links,
        runs: vec![run_view()],
        tokens: Vec::new(),
        coordinators: Vec::new(),
        applied: 9,
        is_led: true,
    }
}

/// The run of [`view`].
fn run_view() -> RunView {
    let run = view().run.expect("a run");
    RunView {
        id: RunId(7),
        name: run.name,
        state: "training".into(),
        status: "training: step 812 of 1,000".into(),
        step: Step(812),
        generation: Generation(4),
        hash: None,
        divergence: None,
        units: run.model.units(),
        figures: RunFigures::default(),
    }
}

#[test]
fn the_port_of_an_api_stays_taken_while_its_process_keeps_it() {
    let options = HttpOptions { listen: None, token: None, read_token: None };
    let mut port = ApiPort::default();
    let address = BoundApi::open(&options, &mut port).expect("a free port").address;
    TcpListener::bind(address).expect_err("the process keeps the port");
    let again = BoundApi::open(&options, &mut port).expect("it is ours");
    assert_eq!(again.address, address);
    drop((again, port));
    TcpListener::bind(address).expect("it is free");
}

#[test]
fn an_address_beyond_this_machine_needs_a_token_for_everything() {
    let options = |listen: &str, token: Option<&str>| HttpOptions {
        listen: Some(listen.parse().expect("an address")),
        token: token.map(PathBuf::from),
        read_token: None,
    };
    for (listen, token) in
        [("127.0.0.1:0", None), ("[::1]:0", None), ("127.8.8.8:1", None), ("0.0.0.0:0", Some("t"))]
    {
        assert!(options(listen, token).check().is_ok(), "{listen}");
    }
    for listen in ["0.0.0.0:0", "10.0.0.1:80", "[::]:0", "[::ffff:127.0.0.1]:0"] {
        let refused = options(listen, None).check().expect_err("it is exposed");
        assert!(matches!(refused, HttpError::Exposed(_)), "{refused}");
    }
}
