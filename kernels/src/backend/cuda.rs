//! NVIDIA GPUs: the operations as launches of kernels, above a [`Driver`].
//!
//! Parameters and activations are stored in the driver's [`Precision`]. Sums, gradients and
//! statistics are f32. All memory is one allocation. Operations only enqueue, and every kernel adds
//! in a fixed order, without atomics. So on one kind of device the same inputs give the same bits
//! on every worker. Parameters arrive beside the computation, and an operation waits for those that
//! it uses.
//!
//! This file knows shapes and arguments, not how kernels get to a device. Tests check the kernels
//! by running them on the CPU, and on a GPU where there is one (`tests/gpu.rs`).

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Range;

use super::{Arena, Attention, Backend, DeviceError, Fetched, Indices, Norm, Sizes, View};
use crate::precision::Precision;
use arenas::Arenas;
use deliveries::Deliveries;
use launch::Chunks;
use segments::Segments;

mod arenas;
mod attention;
mod deliveries;
mod driver;
#[cfg(feature = "cuda")]
pub mod gpu;
mod kernels;
mod launch;
pub mod memory;
mod products;
mod segments;

pub use attention::AttentionKernels;
pub use driver::{
    Address, Argument, Delivery, DeliveryId, Driver, DriverError, Epilogue, Kernel, KernelCall,
    KernelSource, Launch, Matrix, Product,
};
pub use kernels::{KERNELS, SOURCES};

/// A backend on a device with a driver.
pub struct Cuda<D> {
    driver: D,
    arenas: Arenas,
    deliveries: Deliveries,
    /// The tokens and targets on the device.
    indices: Vec<u32>,
    segments: Segments,
    /// The values of the last read.
    values: Vec<f32>,
    /// Requested ranges of the gradient, without the part of the first that has come.
    fetches: VecDeque<Range<usize>>,
    attention: AttentionKernels,
}

impl<D: Driver> Cuda<D> {
    /// Allocates the arenas, zeroed.
    pub fn new(mut driver: D, sizes: Sizes) -> Result<Self, DriverError> {
        let arenas = Arenas::new(sizes, driver.precision());
        let base = driver.allocate(arenas.bytes())?;
        Ok(Self {
            driver,
            arenas: arenas.at(base),
            deliveries: Deliveries::new(sizes.parameters),
            indices: vec![0; sizes.indices],
            segments: Segments::default(),
            values: Vec::new(),
            fetches: VecDeque::new(),
            attention: AttentionKernels::Tensor,
        })
    }

    /// This backend with other kernels for attention.
    pub fn with_attention(self, attention: AttentionKernels) -> Self {
        Self { attention, ..self }
    }

    fn launch(&mut self, kernel: &'static Kernel, launch: Launch, arguments: &[Argument]) {
        self.driver.launch(kernel, launch, arguments);
    }

    /// The address of a view that the next enqueued work uses.
    fn at(&mut self, view: View) -> Argument {
        Argument::Address(self.place(view))
    }

    fn place(&mut self, view: View) -> Address {
        assert!(!view.transposed, "only products take a transposed view");
        if view.arena == Arena::Parameters
            && let Some(delivered) = self.deliveries.use_of(view.range())
        {
            self.driver.wait_for(delivered);
        }
        self.arenas.address(view)
    }

    /// Sends parameters, on a stream of their own.
    fn deliver(&mut self, to: View, values: &[f32]) {
        let waits = self.deliveries.must_wait(&to.range());
        let address = self.arenas.address(to);
        if self.arenas.element(to.arena) == Precision::F32 {
            let delivery = Delivery { to: address, values, cast: None, waits };
            let delivered = self.driver.deliver(delivery);
            return self.deliveries.on_its_way(to.range(), delivered);
        }
        let (arrivals, most) = self.arenas.arrivals();
        for (chunk, values) in values.chunks(most.max(1)).enumerate() {
            let first = chunk * most;
            let stored = address.plus(first * self.arenas.element(to.arena).bytes());
            let [from, stored] = [arrivals, stored].map(Argument::Address);
            let arguments = [from, stored, long(values.len())];
            let launch = launch::elements(values.len());
            let cast = KernelCall { kernel: &kernels::CAST, launch, arguments: &arguments };
            let cast = Some(cast);
            let waits = waits && chunk == 0;
            let delivered = self.driver.deliver(Delivery { to: arrivals, values, cast, waits });
            let start = to.offset + first;
            self.deliveries.on_its_way(start..start + values.len(), delivered);
        }
    }

    /// A view of parameters or activations.
    fn real(&mut self, view: View) -> Argument {
        let real = matches!(view.arena, Arena::Parameters | Arena::Activations);
        assert!(real, "{view:?} is not made of parameters or activations");
        self.at(view)
    }

    /// A view of gradients or statistics.
    fn float(&mut self, view: View) -> Argument {
        let float = matches!(view.arena, Arena::Gradients | Arena::Statistics);
        assert!(float, "{view:?} is not made of gradients or statistics");
        self.at(view)
    }

    /// Launches a kernel of two views of one length, and that length.
    fn elementwise(&mut self, kernel: &'static Kernel, x: View, y: View) {
        assert_eq!(x.len(), y.len(), "elementwise");
        if x.is_empty() {
            return;
        }
        let arguments = [self.real(x), self.real(y), long(x.len())];
        let shape = launch::chunks(x.len() * self.driver.precision().bytes());
        self.launch(kernel, shape, &arguments);
    }

    /// The second pass of a sum over rows.
    fn add_partials(&mut self, partials: Address, sums: View, chunks: Chunks) {
        let arguments =
            [Argument::Address(partials), self.float(sums), long(chunks.count), long(sums.len())];
        self.launch(&kernels::ADD_PARTIALS, launch::columns(sums.len()), &arguments);
    }

    /// The tokens at `tokens`, all of them rows of `table`.
    fn rows_of(&self, tokens: Indices, table: View) -> &[u32] {
        let tokens = &self.indices[tokens.offset..tokens.offset + tokens.len];
        let inside = tokens.iter().all(|token| (*token as usize) < table.rows());
        assert!(inside, "a token has no row in {table:?}");
        tokens
    }
}

impl<D: Driver + 'static> Backend for Cuda<D> {
    fn write(&mut self, to: View, values: &[f32]) {
        assert_eq!(to.len(), values.len(), "one value for each element");
        if to.arena == Arena::Parameters {
            assert!(!to.transposed, "only products take a transposed view");
            return self.deliver(to, values);
        }
        let address = self.place(to);
        if self.arenas.element(to.arena) == Precision::F32 {
            return self.driver.write(address, bytemuck::cast_slice(values));
        }
        let (staging, most) = self.arenas.staging();
        for (chunk, values) in values.chunks(most.max(1)).enumerate() {
            let to = address.plus(chunk * most * self.arenas.element(to.arena).bytes());
            self.driver.write(staging, bytemuck::cast_slice(values));
            let arguments = [Argument::Address(staging), Argument::Address(to), long(values.len())];
            self.launch(&kernels::CAST, launch::elements(values.len()), &arguments);
        }
    }

    fn write_indices(&mut self, to: Indices, values: &[u32]) {
        self.indices[to.offset..to.offset + to.len].copy_from_slice(values);
        self.driver.write(self.arenas.indices(to), bytemuck::cast_slice(values));
    }

    fn read_back(&mut self, from: View) -> Result<Cow<'_, [f32]>, DeviceError> {
        let address = self.place(from);
        self.values.resize(from.len(), 0.0);
        if self.arenas.element(from.arena) == Precision::F32 {
            self.driver.read(address, bytemuck::cast_slice_mut(&mut self.values))?;
            self.deliveries.all_is_done();
            return Ok(Cow::Borrowed(&self.values));
        }
        let (staging, most) = self.arenas.staging();
        let bytes = self.arenas.element(from.arena).bytes();
        for (chunk, values) in self.values.chunks_mut(most.max(1)).enumerate() {
            let from = Argument::Address(address.plus(chunk * most * bytes));
            let arguments = [from, Argument::Address(staging), long(values.len())];
            self.driver.launch(&kernels::WIDEN, launch::elements(values.len()), &arguments);
            self.driver.read(staging, bytemuck::cast_slice_mut(values))?;
            self.deliveries.all_is_done();
        }
        Ok(Cow::Borrowed(&self.values))
    }

    fn fetch(&mut self, gradients: Range<usize>) {
        if !gradients.is_empty() {
            let from = View::row(Arena::Gradients, gradients.clone());
            self.driver.fetch(self.arenas.address(from), from.len());
            self.fetches.push_back(gradients);
        }
    }

    fn fetched(&mut self, wait: bool) -> Result<Option<Fetched<'_>>, DeviceError> {
        let Some(gradient) = self.driver.fetched(wait)? else { return Ok(None) };
        let left = self.fetches.front_mut().expect("only what was asked for comes");
        let range = left.start..left.start + gradient.len();
        assert!(range.end <= left.end, "a part is of one range");
        left.start = range.end;
        if left.start == left.end {
            self.fetches.pop_front();
        }
        Ok(Some(Fetched { range, gradient: gradient.into() }))
    }

    /// On the host: the numbers are a batch's losses, a few KiB, and their order is promised.
    fn total(&mut self, from: View) -> Result<f64, DeviceError> {
        Ok(self.read_back(from)?.iter().fold(0.0, |sum, value| sum + f64::from(*value)))
    }

    fn zero(&mut self, to: View) {
        let address = self.place(to);
        self.driver.zero(address, to.len() * self.arenas.element(to.arena).bytes());
    }

    fn matmul(&mut self, a: View, b: View, c: View) {
        products::product(self, [a, b, c], false);
    }

    fn matmul_add(&mut self, a: View, b: View, c: View) {
        products::product(self, [a, b, c], true);
    }

    fn linear(&mut self, x: View, weight: View, bias: View, y: View) {
        products::linear(self, [x, weight, y], bias);
    }

    fn linear_gelu(&mut self, x: View, weight: View, bias: View, outputs: [View; 2]) {
        products::linear_gelu(self, [x, weight], bias, outputs);
    }

    fn matmul_gelu_backward(&mut self, a: View, b: View, x: View, c: View) {
        products::gelu_backward(self, [a, b, c], x);
    }

    fn add(&mut self, x: View, y: View) {
        self.elementwise(&kernels::ADD, x, y);
    }

    fn add_bias(&mut self, bias: View, y: View) {
        assert_eq!(bias.len(), y.columns(), "one bias for each column");
        if y.is_empty() {
            return;
        }
        let shape = launch::columns_by_rows(y.columns(), y.rows());
        let arguments = [self.real(bias), self.real(y), long(y.rows()), long(y.columns())];
        self.launch(&kernels::ADD_BIAS, shape, &arguments);
    }

    fn bias_backward(&mut self, dy: View, d_bias: View) {
        let (rows, columns) = (dy.rows(), dy.columns());
        assert_eq!(d_bias.len(), columns, "one bias for each column");
        if dy.is_empty() {
            return;
        }
        let (scratch, most) = self.arenas.scratch();
        let chunks = Chunks::new(rows, columns, most);
        let to = if chunks.direct() { self.float(d_bias) } else { Argument::Address(scratch) };
        let length = long(chunks.length);
        let arguments =
            [self.real(dy), to, long(rows), long(columns), length, choice(chunks.direct())];
        self.launch(&kernels::BIAS_PARTIALS, chunks.launch(columns), &arguments);
        if !chunks.direct() {
            self.add_partials(scratch, d_bias, chunks);
        }
    }

    fn embedding(&mut self, tokens: Indices, table: View, y: View) {
        assert_eq!((tokens.len, table.columns()), (y.rows(), y.columns()), "a row for each token");
        let count = self.rows_of(tokens, table).len();
        if y.is_empty() {
            return;
        }
        let tokens = Argument::Address(self.arenas.indices(tokens));
        let arguments =
            [tokens, self.real(table), self.real(y), long(count), long(table.columns())];
        self.launch(&kernels::EMBEDDING, launch::rows(count, 128), &arguments);
    }

    fn embedding_backward(&mut self, tokens: Indices, dy: View, d_table: View) {
        let width = dy.columns();
        assert_eq!((tokens.len, d_table.columns()), (dy.rows(), width), "a row for each token");
        if dy.is_empty() {
            return;
        }
        let mut segments = std::mem::take(&mut self.segments);
        segments.sort(self.rows_of(tokens, d_table));
        let [order, starts] = self.arenas.segments();
        self.driver.write(order, bytemuck::cast_slice(&segments.order));
        self.driver.write(starts, bytemuck::cast_slice(&segments.starts));
        let places = [self.arenas.indices(tokens), order, starts].map(Argument::Address);
        let [tokens, order, starts] = places;
        let arguments = [tokens, order, starts, self.real(dy), self.float(d_table), long(width)];
        let shape = launch::segments(segments.count(), width);
        self.launch(&kernels::EMBEDDING_BACKWARD, shape, &arguments);
        self.segments = segments;
    }

    fn layer_norm(&mut self, norm: Norm) {
        let Norm { x, weight, bias, y, statistics } = norm;
        check_norm(norm);
        if x.is_empty() {
            return;
        }
        let [x_at, weight, bias, y] = [x, weight, bias, y].map(|view| self.real(view));
        let statistics = self.float(statistics);
        let (rows, width) = (long(x.rows()), long(x.columns()));
        let arguments = [x_at, weight, bias, y, statistics, rows, width];
        self.launch(&kernels::LAYER_NORM, launch::warps(x.rows()), &arguments);
    }

    fn layer_norm_backward(&mut self, norm: Norm, dy: View, dx: View) {
        let Norm { x, weight, bias, statistics, .. } = norm;
        check_norm(norm);
        assert_eq!((dy.len(), dx.len()), (x.len(), x.len()), "gradients of the input's shape");
        if x.is_empty() {
            return;
        }
        let [x_at, weight_at, dy, dx] = [x, weight, dy, dx].map(|view| self.real(view));
        let statistics = self.float(statistics);
        let (rows, width) = (long(x.rows()), long(x.columns()));
        let arguments = [x_at, weight_at, statistics, dy, dx, rows, width];
        self.launch(&kernels::LAYER_NORM_BACKWARD, launch::warps(x.rows()), &arguments);

        let sums = [weight, bias].map(View::gradient);
        let (scratch, most) = self.arenas.scratch();
        let chunks = Chunks::new(x.rows(), 2 * x.columns(), most);
        let partials = [scratch, scratch.plus(4 * chunks.count * x.columns())];
        let [d_weight, d_bias] = match chunks.direct() {
            true => sums.map(|view| self.float(view)),
            false => partials.map(Argument::Address),
        };
        let (length, direct) = (long(chunks.length), choice(chunks.direct()));
        let arguments = [x_at, statistics, dy, d_weight, d_bias, rows, width, length, direct];
        self.launch(&kernels::LAYER_NORM_PARTIALS, chunks.launch(x.columns()), &arguments);
        for (partials, sums) in partials.into_iter().zip(sums).filter(|_| !chunks.direct()) {
            self.add_partials(partials, sums, chunks);
        }
    }

    fn attention(&mut self, attention: Attention) {
        attention::forward(self, attention);
    }

    fn attention_backward(&mut self, attention: Attention, dy: View, d_qkv: View, scratch: View) {
        attention::backward(self, attention, dy, d_qkv, scratch);
    }

    fn gelu(&mut self, x: View, y: View) {
        self.elementwise(&kernels::GELU, x, y);
    }

    fn gelu_backward(&mut self, x: View, dy: View) {
        self.elementwise(&kernels::GELU_BACKWARD, x, dy);
    }

    fn cross_entropy(&mut self, logits: View, targets: Indices, losses: View, scale: f64) {
        let (rows, classes) = (logits.rows(), logits.columns());
        assert_eq!((targets.len, losses.len()), (rows, rows), "one loss for each target");
        self.rows_of(targets, logits.t());
        if logits.is_empty() {
            return;
        }
        let targets = Argument::Address(self.arenas.indices(targets));
        let scale = Argument::Float(scale as f32);
        let arguments = [self.real(logits), targets, self.float(losses), long(classes), scale];
        self.launch(&kernels::CROSS_ENTROPY, launch::every_row(rows, 256), &arguments);
    }

    fn bytes(&self) -> usize {
        self.arenas.bytes()
    }
}

fn check_norm(norm: Norm) {
    let Norm { x, weight, bias, y, statistics } = norm;
    assert_eq!((weight.len(), bias.len()), (x.columns(), x.columns()), "one for each column");
    assert_eq!((y.len(), statistics.len()), (x.len(), 2 * x.rows()), "as many rows as the input");
}

/// A count or a size.
fn long(count: usize) -> Argument {
    Argument::Long(count as u64)
}

fn choice(yes: bool) -> Argument {
    Argument::Int(i32::from(yes))
}
