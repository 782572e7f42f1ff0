//! Gradients on their way from a device: in order, each once, with their own bits, and none from a
//! device that has failed.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use everstep_kernels::backend::cuda::{
    Address, Argument, Cuda, Delivery, DeliveryId, Driver, DriverError, Kernel, Launch, Product,
};
use everstep_kernels::compute::{
    Batch, Compute, ComputeError, GradientSink, ParameterSource, Pass, PassPlace,
};
use everstep_kernels::models::{Gpt, GptConfig, OnBackend};
use everstep_kernels::precision::Precision;
use everstep_kernels::random::Philox;

use super::emulated::Emulated;

const WHOLE: Pass = Pass { first: true, last: true, scale: 1.0, place: PassPlace::FIRST };

const GPT: GptConfig = GptConfig {
    vocabulary: 23,
    layers: 3,
    heads: 2,
    width: 16,
    context: 9,
    micro_batch: 2,
    recompute: false,
};

/// What happened, in order.
#[derive(Clone, Debug, PartialEq)]
enum Event {
    Launched,
    /// The pass waited for the device.
    Waited,
    Announced(Range<usize>),
}

type Log = Arc<Mutex<Vec<Event>>>;

/// The emulated device, with copies that arrive as the test wants.
struct Copies {
    inner: Emulated,
    log: Log,
    asked: VecDeque<(Address, usize)>,
    part: Vec<f32>,
    arrival: Arrival,
}

/// The way in which copies arrive.
#[derive(Clone, Copy)]
struct Arrival {
    /// The most f32 of a part.
    part: usize,
    /// Whether a copy arrives only when the caller waits.
    late: bool,
    /// How many parts come before the device fails.
    parts: usize,
}

const AT_ONCE: Arrival = Arrival { part: usize::MAX, late: false, parts: usize::MAX };

impl Driver for Copies {
    fn precision(&self) -> Precision {
        self.inner.precision()
    }

    fn allocate(&mut self, bytes: usize) -> Result<Address, DriverError> {
        self.inner.allocate(bytes)
    }

    fn write(&mut self, to: Address, bytes: &[u8]) {
        self.inner.write(to, bytes);
    }

    fn deliver(&mut self, delivery: Delivery<'_>) -> DeliveryId {
        self.inner.deliver(delivery)
    }

    fn wait_for(&mut self, delivered: DeliveryId) {
        self.inner.wait_for(delivered);
    }

    fn read(&mut self, from: Address, into: &mut [u8]) -> Result<(), DriverError> {
        self.log.lock().unwrap().push(Event::Waited);
        self.inner.read(from, into)
    }

    fn fetch(&mut self, from: Address, count: usize) {
        assert!(count > 0);
        self.asked.push_back((from, count));
    }

    /// Copies at the last moment, so that a value changed too early has other bits.
    fn fetched(&mut self, wait: bool) -> Result<Option<&[f32]>, DriverError> {
        let Arrival { part, late, parts } = &mut self.arrival;
        if *parts == 0 {
            return Err(DriverError::Failed("it broke".into()));
        }
        let Some((from, left)) = self.asked.front_mut().filter(|_| wait || !*late) else {
            return Ok(None);
        };
        if *late {
            self.log.lock().unwrap().push(Event::Waited);
        }
        *parts -= 1;
        self.part.resize((*part).min(*left), 0.0);
        self.inner.read(*from, bytemuck::cast_slice_mut(&mut self.part))?;
        *from = Address(from.0 + 4 * self.part.len() as u64);
        *left -= self.part.len();
        if *left == 0 {
            self.asked.pop_front();
        }
        Ok(Some(&self.part))
    }

    fn zero(&mut self, to: Address, bytes: usize) {
        self.inner.zero(to, bytes);
    }

    fn launch(&mut self, kernel: &'static Kernel, launch: Launch, arguments: &[Argument]) {
        self.log.lock().unwrap().push(Event::Launched);
        self.inner.launch(kernel, launch, arguments);
    }

    fn matmul(&mut self, product: &Product) -> bool {
        self.inner.matmul(product)
    }
}

/// Records the announced ranges.
struct Announcements {
    log: Log,
    gradient: Vec<f32>,
}

impl ParameterSource for Announcements {
    fn await_parameters(&mut self, _range: Range<usize>, _write: &mut dyn FnMut(usize, &[f32])) {}
}

impl GradientSink for Announcements {
    fn publish_gradient(&mut self, range: Range<usize>, gradient: &[f32]) {
        self.gradient[range.clone()].copy_from_slice(gradient);
        self.log.lock().unwrap().push(Event::Announced(range));
    }
}

/// A gradient, with the events on the way to it.
struct Outcome {
    loss: Result<f64, ComputeError>,
    gradient: Vec<u32>,
    events: Vec<Event>,
}

/// A GPT on a device with copies that arrive in this way.
struct Device {
    gpt: OnBackend<Gpt>,
    log: Log,
}

impl Device {
    fn new(config: GptConfig, precision: Precision, arrival: Arrival) -> Option<Self> {
        let (inner, log) = (Emulated::new(precision)?, Log::default());
        let (asked, part) = (VecDeque::new(), Vec::new());
        let driver = Copies { inner, log: log.clone(), asked, part, arrival };
        let open = |sizes| Cuda::new(driver, sizes).expect("the host has the memory");
        let mut gpt = OnBackend::<Gpt>::new(config, open).expect("a valid configuration");
        let philox = Philox::new(2, 0, 0);
        let count = gpt.layout().count() as u64;
        let values: Vec<f32> = (0..count).map(|index| 0.3 * philox.normal(index)).collect();
        gpt.load(0, &values);
        Some(Self { gpt, log })
    }

    fn pass(&mut self, pass: Pass) -> Outcome {
        let count = (GPT.micro_batch * GPT.context) as u32;
        let tokens: Vec<u32> = (0..count).map(|i| i * i % GPT.vocabulary as u32).collect();
        let targets = tokens.iter().rev().copied().collect();
        let batch = Batch { rows: GPT.micro_batch, tokens, targets, features: Vec::new() };
        self.log.lock().unwrap().clear();
        let gradient = vec![f32::NAN; self.gpt.layout().count()];
        let mut exchange = Announcements { log: self.log.clone(), gradient };
        let loss = self.gpt.gradient(&batch, pass, &mut exchange);
        let gradient = exchange.gradient.into_iter().map(f32::to_bits).collect();
        Outcome { loss, gradient, events: self.log.lock().unwrap().clone() }
    }
}

impl Outcome {
    fn announced(&self) -> Vec<Range<usize>> {
        let announced = self.events.iter().filter_map(|event| match event {
            Event::Announced(range) => Some(range.clone()),
            _ => None,
        });
        announced.collect()
    }
}

/// Each range in parts of at most `part`.
fn cut(ranges: &[Range<usize>], part: usize) -> Vec<Range<usize>> {
    let parts = |range: &Range<usize>| {
        let end = range.end;
        range.clone().step_by(part).map(move |start| start..end.min(start.saturating_add(part)))
    };
    ranges.iter().flat_map(|range| parts(range).collect::<Vec<_>>()).collect()
}

#[test]
fn ranges_come_in_order_each_once_and_with_the_same_bits_however_late_and_in_whatever_parts() {
    for (precision, recompute) in [(Precision::F32, false), (Precision::Bf16, true)] {
        let config = GptConfig { recompute, ..GPT };
        let Some(mut device) = Device::new(GPT, precision, AT_ONCE) else { return };
        // The second pass adds to the first one's gradient.
        let accumulated = |device: &mut Device| {
            let first = device.pass(Pass { last: false, ..WHOLE });
            assert_eq!(first.announced(), [], "nothing is final before the last pass");
            device.pass(Pass { first: false, ..WHOLE })
        };
        let expected = accumulated(&mut device);
        let ranges = expected.announced();
        assert_eq!(ranges.len(), GPT.layers + 2, "the last norm, the blocks, the embeddings");
        let starts_where_the_next_ends = |pair: &[Range<usize>]| pair[1].end == pair[0].start;
        assert!(ranges.windows(2).all(starts_where_the_next_ends), "{ranges:?}");
        for (part, late) in [(usize::MAX, true), (100, false), (1000, true), (7, true)] {
            let arrival = Arrival { part, late, ..AT_ONCE };
            let mut device = Device::new(config, precision, arrival).expect("it was there before");
            for _ in 0..2 {
                let found = accumulated(&mut device);
                assert_eq!(found.announced(), cut(&ranges, part));
                assert!(found.gradient == expected.gradient, "other bits in parts of {part}");
                assert_eq!(found.loss.unwrap(), *expected.loss.as_ref().unwrap());
            }
        }
    }
}

#[test]
fn a_range_that_has_come_is_announced_before_the_next_is_computed() {
    let Some(mut device) = Device::new(GPT, Precision::F32, AT_ONCE) else { return };
    let events = device.pass(WHOLE).events;
    let announced = |pair: &[Event]| matches!(pair, [Event::Launched, Event::Announced(_)]);
    let count = events.windows(2).filter(|pair| announced(pair)).count();
    assert_eq!(count, GPT.layers + 2, "{events:?}");
}

#[test]
fn nothing_is_waited_for_before_all_is_enqueued() {
    let arrival = Arrival { late: true, ..AT_ONCE };
    let Some(mut device) = Device::new(GPT, Precision::F32, arrival) else { return };
    let events = device.pass(WHOLE).events;
    let waited = events.iter().position(|event| *event == Event::Waited).expect("for the last");
    let launched = events.iter().rposition(|event| *event == Event::Launched);
    assert!(launched < Some(waited), "{events:?}");
}

#[test]
fn after_a_failure_in_between_nothing_is_announced_any_more() {
    for (late, parts) in [(false, 0), (false, 3), (true, 0), (true, 3)] {
        let arrival = Arrival { part: 1000, late, parts };
        let Some(mut device) = Device::new(GPT, Precision::F32, arrival) else { return };
        for announced in [parts, 0] {
            let outcome = device.pass(WHOLE);
            assert!(matches!(&outcome.loss, Err(ComputeError::Device(why)) if why == "it broke"));
            assert_eq!(outcome.announced().len(), announced, "{:?}", outcome.events);
        }
    }
}
