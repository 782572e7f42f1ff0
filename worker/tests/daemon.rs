//! A worker's daemon in a thread, with a test in the place of its coordinator. It checks what a
//! worker sends on links that end and come again, when the coordinator evicts it, when it is told
//! to leave, and when its data set or its model fails on a sample.

use std::any::Any;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use everstep_kernels::compute::{Batch, Compute, ComputeError, Evaluation, GradientSink, Pass};
use everstep_kernels::device::{ChosenDevice, DeviceChoice};
use everstep_kernels::layout::{Init, Layout};
use everstep_kernels::optimizer::{UpdateBlock, UpdateInputs, UpdateRule};
use everstep_transport::identity::{
    Authority, Enrolment, Identity, JoinToken, NODE_LIFETIME, Role, TokenLimits,
};
use everstep_transport::protocol::message::{Heartbeat, Registration};
use everstep_transport::protocol::outcome::Inability;
use everstep_transport::protocol::{
    Cause, CoordinatorId, CoordinatorView, DataShard, Generation, Member, Message, NodeName,
    Ownership, Rank, Record, RunSpec, Shard, Step, Term, WorkerId, Zone, exemplars,
};
use everstep_transport::quic::{Endpoint, Link, Settings};
use everstep_worker::builtin;
use everstep_worker::daemon::{CleanExit, WorkerError, WorkerOptions, run};
use everstep_worker::data::{DataError, Dataset, Sampler};
use everstep_worker::registry::Registry;
use rustix::process::{Signal, getpid, kill_process};
use tokio::time::{sleep, timeout};

/// Signals are for the whole process: one worker at a time.
static ALONE: Mutex<()> = Mutex::new(());

const FIRST: WorkerId = WorkerId(5);
const TERM: Term = Term(1);
/// The zone of the worker's machine.
const ZONE: &str = "rack 7";

/// One cluster: its coordinator, which the test plays, and one worker.
struct Scene {
    authority: Arc<Authority>,
    token: JoinToken,
    address: SocketAddr,
    endpoint: Option<Endpoint>,
    dir: tempfile::TempDir,
    worker: JoinHandle<Result<CleanExit, WorkerError>>,
    _alone: MutexGuard<'static, ()>,
}

impl Scene {
    fn set() -> Self {
        Self::with(builtin::registry())
    }

    /// Starts a worker that can train the models and data of this registry.
    fn with(registry: Registry) -> Self {
        Self::with_grace(registry, None)
    }

    /// The same, and the worker waits this long after SIGTERM, at most.
    fn with_grace(registry: Registry, grace: Option<Duration>) -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let authority = Arc::new(Authority::create().unwrap());
        let token = JoinToken::create(&authority);
        let listen = (Ipv4Addr::LOCALHOST, 0).into();
        let endpoint = coordinator(1, &authority, &token, listen).unwrap();
        let address = endpoint.local_address();
        let options = WorkerOptions {
            coordinators: vec![address.into()],
            token: token.to_string(),
            listen,
            zone: Zone::parse(ZONE),
            dir: None,
            kept_in: None,
            device: DeviceChoice::Cpu,
            grace,
            metadata: None,
            overlap: true,
            ends_with_run: false,
            shares_memory: true,
        };
        let worker = thread::spawn(|| run(options, Arc::new(registry), |_| {}));
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("text"), "to be or not to be ".repeat(100)).unwrap();
        let endpoint = Some(endpoint);
        Self { authority, token, address, endpoint, dir, worker, _alone: alone }
    }

    fn run(&self) -> RunSpec {
        let mut run = exemplars::run();
        run.data.path = self.dir.path().join("text").display().to_string();
        run
    }

    async fn link(&self) -> Link {
        link_of(self.endpoint.as_ref().expect("a coordinator")).await
    }

    /// A link on which the worker has registered under [`FIRST`], and its registration.
    async fn registered(&self) -> (Link, Registration) {
        let link = self.link().await;
        assert!(matches!(hear(&link).await, Message::Hello { worker: None, .. }));
        link.send(Message::Welcome { run: self.run(), term: TERM }).unwrap();
        let registration = registration(&link).await;
        link.send(Message::Registered { worker: FIRST, term: TERM }).unwrap();
        hear_until(&link, |message| matches!(message, Message::Heartbeat(_))).await;
        (link, registration)
    }

    /// Ends the coordinator's process, and starts another one at the same address.
    async fn restart(&mut self, link: Link) {
        drop((self.endpoint.take(), link)); // each of the two keeps the port
        let rebind = async {
            while self.endpoint.is_none() {
                sleep(Duration::from_millis(20)).await;
                self.endpoint = coordinator(1, &self.authority, &self.token, self.address);
            }
        };
        timeout(TEST_TIMEOUT, rebind).await.expect("the port is free in time");
    }

    async fn ended(self) -> Result<CleanExit, WorkerError> {
        let joined = tokio::task::spawn_blocking(|| self.worker.join());
        let joined = timeout(TEST_TIMEOUT, joined).await.expect("an end in time");
        joined.expect("a thread to wait").expect("a worker does not panic")
    }
}

const TEST_TIMEOUT: Duration = Duration::from_secs(20);

fn name(number: u64) -> NodeName {
    NodeName::parse(&format!("coordinator-{number}")).unwrap()
}

fn coordinator(
    number: u64,
    authority: &Arc<Authority>,
    token: &JoinToken,
    listen: SocketAddr,
) -> Option<Endpoint> {
    let identity = Identity { role: Role::Coordinator, name: name(number) };
    let credentials = authority.issue(&identity, NODE_LIFETIME).unwrap();
    let workers = token.accepted(TokenLimits::unlimited(Role::Worker));
    let enrolment = Enrolment::new(authority.clone(), vec![workers]);
    let settings = Settings::for_address(listen.ip());
    Endpoint::bind(listen, &credentials, settings, Some(enrolment)).ok()
}

async fn link_of(endpoint: &Endpoint) -> Link {
    let accepted = timeout(TEST_TIMEOUT, endpoint.accept()).await;
    accepted.expect("a worker in time").expect("a link")
}

async fn hear(link: &Link) -> Message {
    let message = timeout(TEST_TIMEOUT, link.receive()).await;
    message.expect("a message in time").expect("the link lives")
}

async fn hear_until(link: &Link, wanted: impl Fn(&Message) -> bool) -> Message {
    let wait = async {
        loop {
            let message = hear(link).await;
            if wanted(&message) {
                return message;
            }
        }
    };
    timeout(TEST_TIMEOUT, wait).await.expect("the message in time")
}

async fn registration(link: &Link) -> Registration {
    match hear_until(link, |message| matches!(message, Message::Register(_))).await {
        Message::Register(registration) => registration,
        _ => unreachable!("it is what was waited for"),
    }
}

fn terminate() {
    kill_process(getpid(), Signal::TERM).unwrap();
}

#[tokio::test]
async fn a_worker_comes_back_under_its_id_when_its_coordinator_is_back() {
    let mut scene = Scene::set();
    let (link, _) = scene.registered().await;
    scene.restart(link).await;
    let up = Instant::now();
    let link = scene.link().await;
    println!("back {:?} after the coordinator was", up.elapsed());
    assert!(matches!(hear(&link).await, Message::Hello { worker: Some(FIRST), .. }));
    link.send(Message::Registered { worker: FIRST, term: TERM }).unwrap();
    hear_until(&link, |message| matches!(message, Message::Heartbeat(_))).await;
    link.send(Message::Dismiss).unwrap();
    assert!(matches!(scene.ended().await, Ok(CleanExit::Dismissed)));
    assert!(link.closed().await.is_gone());
}

#[tokio::test]
async fn a_worker_is_told_of_the_next_leader_and_obeys_it_when_it_leads() {
    let mut scene = Scene::set();
    let (link, _) = scene.registered().await;
    let anywhere = (Ipv4Addr::LOCALHOST, 0).into();
    let next = coordinator(2, &scene.authority, &scene.token, anywhere).unwrap();
    let all = [(1, scene.address), (2, next.local_address())];
    let members = all.map(|(number, address)| {
        let (id, name) = (CoordinatorId(number), name(number));
        CoordinatorView { id, name, address, api: None }
    });
    let members = members.to_vec();
    link.send(Message::Coordinators {
        revision: 1,
        term: TERM,
        leader: Some(CoordinatorId(1)),
        members,
    })
    .unwrap();
    let other = link_of(&next).await;
    assert!(matches!(hear(&other).await, Message::Hello { worker: Some(FIRST), .. }));
    drop((scene.endpoint.take(), link));
    let died = Instant::now();
    other.send(Message::Registered { worker: FIRST, term: Term(TERM.0 + 1) }).unwrap();
    assert!(matches!(hear(&other).await, Message::Heartbeat(_)));
    println!("heard {:?} after the leader's death", died.elapsed());
    other.send(Message::Dismiss).unwrap();
    assert!(matches!(scene.ended().await, Ok(CleanExit::Dismissed)));
}

#[tokio::test]
async fn an_evicted_worker_registers_again_as_another_one() {
    let scene = Scene::set();
    let (link, first) = scene.registered().await;
    assert_eq!(first.zone.as_ref().map(Zone::as_str), Some(ZONE));
    link.send(Message::Evicted { worker: FIRST }).unwrap();
    hear_until(&link, |message| matches!(message, Message::Hello { worker: None, .. })).await;
    link.send(Message::Welcome { run: scene.run(), term: TERM }).unwrap();
    let second = registration(&link).await;
    assert_ne!(second.incarnation, first.incarnation);
    assert_eq!(second, Registration { incarnation: second.incarnation, ..first });
    link.send(Message::Dismiss).unwrap();
    assert!(matches!(scene.ended().await, Ok(CleanExit::Dismissed)));
}

#[tokio::test]
async fn a_worker_that_gets_sigterm_asks_to_leave_and_goes_when_it_may() {
    let scene = Scene::set();
    let (link, _) = scene.registered().await;
    terminate();
    hear_until(&link, |message| *message == Message::Leave).await;
    link.send(Message::Dismiss).unwrap();
    assert!(matches!(scene.ended().await, Ok(CleanExit::Drained)));
}

#[tokio::test]
async fn a_second_sigterm_is_the_end_of_patience() {
    let scene = Scene::set();
    let (link, _) = scene.registered().await;
    terminate();
    hear_until(&link, |message| *message == Message::Leave).await;
    terminate();
    assert!(link.closed().await.is_gone());
    assert!(matches!(scene.ended().await, Ok(CleanExit::Overdue)));
}

#[tokio::test]
async fn a_worker_goes_when_its_grace_is_over() {
    // Shorter, the worker might ask to leave and close its links at one moment.
    let grace = Duration::from_secs(3);
    let scene = Scene::with_grace(builtin::registry(), Some(grace));
    let (link, _) = scene.registered().await;
    let told = Instant::now();
    terminate();
    hear_until(&link, |message| *message == Message::Leave).await;
    assert!(link.closed().await.is_gone());
    assert!(told.elapsed() >= grace, "{:?}", told.elapsed());
    assert!(matches!(scene.ended().await, Ok(CleanExit::Overdue)));
}

// A data set that fails.

/// The number of samples of the data set that panics at one of them.
const SAMPLES: u64 = 1_000;

/// Texts of four bytes. The data set fails at one of them.
struct Torn {
    at: Option<u64>,
    failure: Failure,
}

/// How a data set fails.
#[derive(Clone)]
enum Failure {
    Panic,
    Refuse,
    /// It does not return before this is set.
    Hang(Arc<AtomicBool>),
}

impl Dataset for Torn {
    fn len(&self) -> u64 {
        SAMPLES
    }
    fn fingerprint(&self) -> [u8; 32] {
        [9; 32]
    }
    fn fill(&self, index: u64, batch: &mut Batch) -> Result<(), DataError> {
        if Some(index) == self.at {
            match &self.failure {
                Failure::Panic => panic!("this page is torn"),
                Failure::Refuse => return Err(DataError::Refuse("this page is torn".into())),
                Failure::Hang(over) => {
                    while !over.load(Ordering::Relaxed) {
                        thread::sleep(Duration::from_millis(10));
                    }
                }
            }
        }
        batch.tokens.extend([index as u32 % 256; 4]);
        batch.targets.extend([index as u32 % 7; 4]);
        batch.rows += 1;
        Ok(())
    }
    fn validation_len(&self) -> u64 {
        0
    }
    fn fill_validation(&self, _: u64, _: &mut Batch) -> Result<(), DataError> {
        Ok(())
    }
}

/// A run on [`Torn`]. Its data path says which sample is torn, if one is.
fn torn(at: Option<u64>) -> RunSpec {
    let mut run = RunSpec { steps: 3, ..exemplars::run() };
    run.data.kind = "torn".into();
    run.data.path = at.map_or("whole".into(), |at| at.to_string());
    run
}

/// The worker on this link trains alone. Returns its last message about that.
async fn trains(link: &Link, of: (&RunSpec, WorkerId), number: Generation) -> Message {
    announce(link, of, number).await;
    answer(link, number).await
}

/// The worker on this link becomes the only member of a generation.
async fn announce(link: &Link, (run, worker): (&RunSpec, WorkerId), number: Generation) {
    link.send(Message::Welcome { run: run.clone(), term: TERM }).unwrap();
    let registered = registration(link).await;
    link.send(Message::Registered { worker, term: TERM }).unwrap();
    link.send(Message::Pause { term: TERM, number }).unwrap();
    hear_until(link, |message| matches!(message, Message::Status(_))).await;
    let member = Member {
        worker,
        name: link.identity().name.clone(),
        address: registered.address,
        data_shards: (0..run.batch.data_shards).map(DataShard).collect(),
    };
    let count = registered.fingerprint.shards;
    link.send(Message::Announce(Record {
        number,
        predecessor: Generation(0),
        term: TERM,
        cause: Cause::Start,
        members: vec![member],
        owners: vec![Ownership { first: Shard(0), count, owners: vec![Rank(0)] }],
        resume: Step(0),
        commit: None,
        waiting: false,
    }))
    .unwrap();
}

/// Answers the worker's heartbeats. Returns its first other message.
async fn answer(link: &Link, number: Generation) -> Message {
    loop {
        let heartbeat = match hear(link).await {
            Message::Heartbeat(heartbeat) => heartbeat,
            Message::Status(_) => continue,
            last => return last,
        };
        let written = heartbeat.lines.last().map_or(Step(0), |line| line.step);
        let (generation, lacks_lines, retained) = (number, false, 0);
        let answer = Message::HeartbeatAnswer { generation, written, lacks_lines, retained };
        link.send(answer).unwrap();
    }
}

/// This uses the loader's and the device's own threads.
#[tokio::test]
async fn a_sample_that_panics_fails_the_run_with_its_words_and_the_worker_trains_the_next() {
    check_that_a_torn_sample_fails_the_run(Failure::Panic).await;
}

#[tokio::test]
async fn a_refused_sample_fails_the_run_with_the_words_of_the_data_set() {
    check_that_a_torn_sample_fails_the_run(Failure::Refuse).await;
}

/// A worker whose data set fails like this at the sample that [`torn`] names.
fn failing(failure: Failure) -> Scene {
    Scene::with(builtin::registry().dataset("torn", move |run| {
        let at = run.data.path.parse().ok();
        Ok(Arc::new(Torn { at, failure: failure.clone() }))
    }))
}

/// A sample of the second step.
fn sample_of_step_2() -> u64 {
    let run = torn(None);
    let sampler = Sampler::new(run.seed, SAMPLES, run.batch);
    sampler.sample(Step(2), DataShard(1), 0, 1).index
}

/// The coordinator hears how long the data shard takes, and how long one usually takes.
#[tokio::test]
async fn a_data_set_that_hangs_is_told_of_in_heartbeats() {
    let over = Arc::new(AtomicBool::new(false));
    let scene = failing(Failure::Hang(over.clone()));
    let link = scene.link().await;
    assert!(matches!(hear(&link).await, Message::Hello { worker: None, .. }));
    let hangs = |message: &Message| match message {
        Message::Heartbeat(Heartbeat { computing: Some(shard), .. }) => {
            shard.under_way_ms > (3 * shard.usual_ms).max(1_500)
        }
        _ => false,
    };
    let run = torn(Some(sample_of_step_2()));
    announce(&link, (&run, FIRST), Generation(1)).await;
    hear_until(&link, hangs).await;
    over.store(true, Ordering::Relaxed);
    let Message::Finished(result) = answer(&link, Generation(1)).await else { panic!("no end") };
    assert_eq!(result.worker, FIRST);
    link.send(Message::Dismiss).unwrap();
    assert!(matches!(scene.ended().await, Ok(CleanExit::Dismissed)));
}

async fn check_that_a_torn_sample_fails_the_run(failure: Failure) {
    let scene = failing(failure);
    let link = scene.link().await;
    assert!(matches!(hear(&link).await, Message::Hello { worker: None, .. }));
    let (whole, at) = (torn(None), sample_of_step_2());
    let began = Instant::now();
    let said = trains(&link, (&torn(Some(at)), FIRST), Generation(1)).await;
    let Message::Unable { inability: Inability::Run, reason } = said else { panic!("{said:?}") };
    println!("{reason}: after {:?}", began.elapsed());
    for words in [format!("sample {at}"), "this page is torn".into()] {
        assert!(reason.contains(&words), "{reason}");
    }
    check_that_the_worker_trains_the_next(scene, link, &whole).await;
}

async fn check_that_the_worker_trains_the_next(scene: Scene, link: Link, whole: &RunSpec) {
    link.send(Message::Released { term: TERM }).unwrap();
    hear_until(&link, |message| matches!(message, Message::Hello { worker: None, .. })).await;
    let second = WorkerId(FIRST.0 + 1);
    let said = trains(&link, (whole, second), Generation(2)).await;
    let Message::Finished(result) = said else { panic!("{said:?}") };
    let computed = u64::from(whole.batch.data_shards) * whole.steps;
    assert_eq!((result.worker, result.data_shards_computed), (second, computed));
    link.send(Message::Dismiss).unwrap();
    assert!(matches!(scene.ended().await, Ok(CleanExit::Dismissed)));
}

// An optimizer that fails.

/// A rule that panics in the second step, of every owner.
#[derive(Debug)]
struct Cracked;

impl UpdateRule for Cracked {
    fn moments(&self) -> usize {
        0
    }
    fn update(&self, _: UpdateBlock<'_>, inputs: &UpdateInputs<'_>) {
        assert!(inputs.run_step < 2, "the table has one row");
    }
}

#[tokio::test]
async fn an_optimizer_that_panics_fails_the_run_with_its_words_and_the_worker_trains_the_next() {
    let registry = builtin::registry()
        .dataset("torn", |_| Ok(Arc::new(Torn { at: None, failure: Failure::Panic })))
        .optimizer("cracked", |_| Ok(Arc::new(Cracked)));
    let scene = Scene::with(registry);
    let link = scene.link().await;
    assert!(matches!(hear(&link).await, Message::Hello { worker: None, .. }));
    let whole = torn(None);
    let mut run = whole.clone();
    run.optimizer.kind = "cracked".into();
    let said = trains(&link, (&run, FIRST), Generation(1)).await;
    let Message::Unable { inability: Inability::Run, reason } = said else { panic!("{said:?}") };
    assert_eq!(reason, "the optimizer panicked: the table has one row");
    check_that_the_worker_trains_the_next(scene, link, &whole).await;
}

// A data set that is costly to read.

/// [`Torn`], whole, with a content that the next one can have.
struct Costly {
    samples: Torn,
    content: Arc<()>,
}

impl Dataset for Costly {
    fn len(&self) -> u64 {
        self.samples.len()
    }
    fn fingerprint(&self) -> [u8; 32] {
        self.samples.fingerprint()
    }
    fn fill(&self, index: u64, batch: &mut Batch) -> Result<(), DataError> {
        self.samples.fill(index, batch)
    }
    fn validation_len(&self) -> u64 {
        0
    }
    fn fill_validation(&self, index: u64, batch: &mut Batch) -> Result<(), DataError> {
        self.samples.fill_validation(index, batch)
    }
    fn reusable(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(self.content.clone())
    }
}

#[tokio::test]
async fn a_worker_that_begins_again_reads_its_data_again_only_if_they_are_others() {
    /// What was read, with its path.
    type Reads = Vec<(String, Weak<()>)>;
    let reads: Arc<Mutex<Reads>> = Arc::default();
    let read = reads.clone();
    let build = move |run: &RunSpec| {
        let mut read = read.lock().unwrap_or_else(PoisonError::into_inner);
        let last = read.last().filter(|(path, _)| *path == run.data.path);
        let content = last.and_then(|(_, content)| content.upgrade()).unwrap_or_else(|| {
            let content = Arc::new(());
            read.push((run.data.path.clone(), Arc::downgrade(&content)));
            content
        });
        let samples = Torn { at: None, failure: Failure::Panic };
        Ok(Arc::new(Costly { samples, content }) as _)
    };
    let counts = || {
        let reads = reads.lock().unwrap_or_else(PoisonError::into_inner);
        let held = reads.iter().filter(|(_, content)| content.strong_count() > 0).count();
        (reads.len(), held)
    };
    let scene = Scene::with(builtin::registry().dataset("torn", build));
    let link = scene.link().await;
    for (id, at, read) in [(5, None, 1), (6, None, 1), (7, Some(1), 2), (8, None, 3)] {
        let is_new = |message: &Message| matches!(message, Message::Hello { worker: None, .. });
        hear_until(&link, is_new).await;
        link.send(Message::Welcome { run: torn(at), term: TERM }).unwrap();
        registration(&link).await;
        assert_eq!(counts().0, read, "worker {id}");
        // The loading thread of the earlier data ends soon after its device.
        let dropped = async {
            while counts().1 != 1 {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(TEST_TIMEOUT, dropped).await.expect("the earlier data are held no more");
        let worker = WorkerId(id);
        link.send(Message::Registered { worker, term: TERM }).unwrap();
        hear_until(&link, |message| matches!(message, Message::Heartbeat(_))).await;
        link.send(Message::Released { term: TERM }).unwrap();
    }
    link.send(Message::Dismiss).unwrap();
    assert!(matches!(scene.ended().await, Ok(CleanExit::Dismissed)));
}

// A model that announces its gradient wrongly, and not at its first micro-batch.

/// A model of [`PARAMETERS`] parameters whose gradient is zero.
struct Careless {
    layout: Layout,
    /// The announced ranges of one data shard of the second step.
    wrong: Vec<Range<usize>>,
}

const PARAMETERS: usize = 3_000;

impl Compute for Careless {
    fn layout(&self) -> &Layout {
        &self.layout
    }
    fn load(&mut self, _: usize, _: &[f32]) {}
    fn gradient(
        &mut self,
        _: &Batch,
        pass: Pass,
        sink: &mut dyn GradientSink,
    ) -> Result<f64, ComputeError> {
        sink.await_parameters(0..PARAMETERS, &mut |_, _| {});
        let ranges = match (pass.place.step, pass.place.data_shard) {
            (2, 1) => self.wrong.clone(),
            _ => vec![1_000..PARAMETERS, 0..1_000],
        };
        for range in ranges.into_iter().filter(|_| pass.last) {
            sink.publish_gradient(range.clone(), &vec![0.0; range.len()]);
        }
        Ok(1.0)
    }
    fn evaluate(&mut self, _: &Batch) -> Result<Evaluation, ComputeError> {
        Ok(Evaluation { loss: 1.0, metric: None })
    }
    fn device_bytes(&self) -> usize {
        4 * PARAMETERS
    }
}

#[tokio::test]
async fn a_model_that_later_leaves_a_range_out_fails_the_run_and_the_worker_trains_the_next() {
    let part = vec![0..500, 500..1_000];
    check_that_a_wrong_announcement_fails_the_run(part, "announced no gradient").await;
}

#[tokio::test]
async fn a_model_that_later_announces_a_range_twice_fails_the_run() {
    let twice = vec![0..PARAMETERS, 0..1_000];
    check_that_a_wrong_announcement_fails_the_run(twice, "in a range that it had announced").await;
}

/// Every worker would get the same error, so the run fails at once. No worker ends for it.
async fn check_that_a_wrong_announcement_fails_the_run(wrong: Vec<Range<usize>>, words: &str) {
    let whole = |_: &RunSpec| Ok(Arc::new(Torn { at: None, failure: Failure::Panic }) as _);
    let build = move |_: &RunSpec, _: ChosenDevice<'_>| {
        let mut layout = Layout::new();
        layout.push("weights", &[PARAMETERS], Init::Constant(0.0));
        Ok(Box::new(Careless { layout, wrong: wrong.clone() }) as Box<dyn Compute>)
    };
    let scene = Scene::with(builtin::registry().dataset("torn", whole).model("careless", build));
    let link = scene.link().await;
    assert!(matches!(hear(&link).await, Message::Hello { worker: None, .. }));
    let whole = torn(None);
    let mut careless = whole.clone();
    careless.model.kind = "careless".into();
    let said = trains(&link, (&careless, FIRST), Generation(1)).await;
    let Message::Unable { inability: Inability::Run, reason } = said else { panic!("{said:?}") };
    assert!(reason.contains(words), "{reason}");
    check_that_the_worker_trains_the_next(scene, link, &whole).await;
}
