//! A driver of a device that computes nothing. It shows the backend's requests, and how its
//! failures reach a worker.

use std::sync::{Arc, Mutex};

use everstep_kernels::backend::cuda::{
    Address, Argument, Cuda, Delivery, DeliveryId, Driver, DriverError, Epilogue, Kernel, Launch,
    Product, memory,
};
use everstep_kernels::backend::{Arena, Backend, DeviceError, Sizes, View};
use everstep_kernels::compute::{Batch, Compute, ComputeError, GradientCollector, Pass, PassPlace};
use everstep_kernels::models::{Mlp, MlpConfig, ModelConfigError, OnBackend};
use everstep_kernels::precision::Precision;

/// The behaviour of the driver, shared with the test.
#[derive(Clone, Default)]
struct Stub {
    free_bytes: usize,
    /// Whether it has a library of products, and whether the library has epilogues.
    library: bool,
    epilogues: bool,
    broken: bool,
    products: Arc<Mutex<Vec<Product>>>,
    launched: Arc<Mutex<Vec<&'static str>>>,
}

impl Driver for Stub {
    fn precision(&self) -> Precision {
        Precision::Bf16
    }

    fn allocate(&mut self, bytes: usize) -> Result<Address, DriverError> {
        let Self { free_bytes, .. } = *self;
        let none = DriverError::OutOfMemory { asked_bytes: bytes, free_bytes, total_bytes: 1000 };
        if bytes > free_bytes { Err(none) } else { Ok(Address(4096)) }
    }

    fn write(&mut self, _to: Address, _bytes: &[u8]) {}

    fn deliver(&mut self, _delivery: Delivery<'_>) -> DeliveryId {
        DeliveryId(0)
    }

    fn wait_for(&mut self, _delivered: DeliveryId) {}

    fn read(&mut self, _from: Address, _into: &mut [u8]) -> Result<(), DriverError> {
        if self.broken { Err(DriverError::Failed("it broke".into())) } else { Ok(()) }
    }

    fn fetch(&mut self, _from: Address, _count: usize) {}

    fn fetched(&mut self, _wait: bool) -> Result<Option<&[f32]>, DriverError> {
        if self.broken { Err(DriverError::Failed("it broke".into())) } else { Ok(None) }
    }

    fn zero(&mut self, _to: Address, _bytes: usize) {}

    fn launch(&mut self, kernel: &'static Kernel, _launch: Launch, _arguments: &[Argument]) {
        self.launched.lock().unwrap().push(kernel.name);
    }

    fn matmul(&mut self, product: &Product) -> bool {
        self.products.lock().unwrap().push(*product);
        self.library && (self.epilogues || product.epilogue == Epilogue::None)
    }
}

const PLENTY: usize = 1 << 30;

const MLP: MlpConfig =
    MlpConfig { vocabulary: 11, layers: 1, width: 7, context: 3, micro_batch: 1 };

fn mlp(stub: Stub) -> Result<OnBackend<Mlp>, ModelConfigError> {
    OnBackend::open(MLP, |sizes| Cuda::new(stub, sizes).map_err(DeviceError::from))
}

#[test]
fn a_model_that_does_not_fit_says_what_it_asked_for() {
    let error = mlp(Stub { free_bytes: 10, ..Stub::default() }).err().expect("it does not fit");
    let text = error.to_string();
    let parts = ["out of device memory", "10 of 1000 are free", "Lower batch.micro_batch"];
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
}

#[test]
fn what_a_model_asks_for_is_what_the_formula_says() {
    let sizes = Sizes { parameters: 999, activations: 77, statistics: 5, indices: 9, sequence: 0 };
    let parts = memory::arena(sizes, Precision::Bf16);
    let bytes: usize = parts.iter().map(|(_, bytes)| bytes).sum();
    let open = |free_bytes| Cuda::new(Stub { free_bytes, ..Stub::default() }, sizes).err();
    assert_eq!(open(bytes), None);
    let none =
        DriverError::OutOfMemory { asked_bytes: bytes, free_bytes: bytes - 1, total_bytes: 1000 };
    assert_eq!(open(bytes - 1), Some(none));
}

#[test]
fn a_device_that_failed_gives_an_error_and_no_gradient() {
    let stub = Stub { free_bytes: PLENTY, broken: true, ..Stub::default() };
    let mut model = mlp(stub).expect("it fits");
    let batch = Batch { rows: 1, tokens: vec![1; 3], targets: vec![2], features: Vec::new() };
    let mut exchange = GradientCollector::default();
    let whole = Pass { first: true, last: true, scale: 1.0, place: PassPlace::FIRST };
    let found = model.gradient(&batch, whole, &mut exchange);
    assert!(matches!(found, Err(ComputeError::Device(text)) if text == "it broke"));
    assert_eq!(exchange.gradient, []);
    assert!(matches!(model.evaluate(&batch), Err(ComputeError::Device(_))));
    assert_eq!(model.next_logits(&[1]), None);
}

#[test]
fn products_go_to_the_library_where_there_is_one() {
    let sizes = Sizes { parameters: 100, activations: 100, ..Sizes::default() };
    let a = View::new(Arena::Activations, 32, 3, 2).t();
    let b = View::new(Arena::Parameters, 7, 3, 5);
    let c = View::new(Arena::Gradients, 1, 2, 5);
    for library in [true, false] {
        let stub = Stub { free_bytes: PLENTY, library, ..Stub::default() };
        let mut device = Cuda::new(stub.clone(), sizes).expect("it fits");
        device.matmul_add(a, b, c);
        let [product] = stub.products.lock().unwrap()[..] else { panic!("one product") };
        let shape = |matrix: everstep_kernels::backend::cuda::Matrix| {
            (matrix.element, matrix.rows, matrix.columns, matrix.transposed)
        };
        assert_eq!(shape(product.a), (Precision::Bf16, 2, 3, true));
        assert_eq!(shape(product.b), (Precision::Bf16, 3, 5, false));
        assert_eq!(shape(product.c), (Precision::F32, 2, 5, false));
        assert!(product.accumulate);
        // Parameters come first: element 7 of two bytes.
        assert_eq!(product.b.address, Address(4096 + 14));
        let expected: &[&str] = if library { &[] } else { &["matmul_f32"] };
        assert_eq!(*stub.launched.lock().unwrap(), expected);
    }
}

#[test]
fn what_the_library_has_no_epilogue_for_is_its_product_and_kernels() {
    let sizes = Sizes { parameters: 100, activations: 100, ..Sizes::default() };
    let [x, y, g] = [0, 16, 32].map(|at| View::new(Arena::Activations, at, 2, 8));
    let (weight, bias) =
        (View::new(Arena::Parameters, 0, 8, 8), View::row(Arena::Parameters, 64..72));
    for (library, epilogues, products, kernels) in [
        (true, true, 2, &[][..]),
        (true, false, 5, &["add_bias", "gelu", "gelu_backward"]),
        (false, false, 5, &["matmul", "add_bias", "gelu", "matmul", "gelu_backward"]),
    ] {
        let stub = Stub { free_bytes: PLENTY, library, epilogues, ..Stub::default() };
        let mut device = Cuda::new(stub.clone(), sizes).expect("it fits");
        device.linear_gelu(x, weight, bias, [y, g]);
        device.matmul_gelu_backward(y, weight.t(), x, g);
        assert_eq!(stub.products.lock().unwrap().len(), products, "asked for");
        assert_eq!(*stub.launched.lock().unwrap(), kernels);
    }
}
