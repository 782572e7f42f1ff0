//! Forward and backward of the GPTs of the design, on one thread and on all cores: prints tokens
//! per second.

use std::thread::available_parallelism;
use std::time::Instant;

use everstep_kernels::backend::Cpu;
use everstep_kernels::compute::{Batch, Compute, GradientCollector, Pass, PassPlace};
use everstep_kernels::models::{Gpt, GptConfig, OnBackend};
use everstep_kernels::threads::Threads;

fn main() {
    for (layers, width, heads, context) in [(4, 128, 4, 128), (6, 384, 6, 256)] {
        let micro_batch = 4;
        for recompute in [false, true] {
            let vocabulary = 256;
            let config =
                GptConfig { vocabulary, layers, heads, width, context, micro_batch, recompute };
            let what = format!("gpt {layers} x {width}, {micro_batch} sequences of {context}");
            let how = if recompute { ", blocks computed again" } else { "" };
            let cores = available_parallelism().map_or(1, usize::from);
            for threads in (1..=cores).filter(|threads| [1, cores].contains(threads)) {
                let rate = tokens_per_second(config, threads);
                let on = if threads > 1 { format!(", {threads} threads") } else { String::new() };
                println!("{what}{how}{on}: {rate:.0} tokens/s");
            }
        }
    }
}

/// The best of several passes: other programs on the machine only slow them down.
fn tokens_per_second(config: GptConfig, threads: usize) -> f64 {
    let mut gpt =
        OnBackend::<Gpt>::new(config, |sizes| Cpu::on_threads(sizes, Threads::new(threads)))
            .expect("a valid configuration");
    let mut parameters = vec![0.0; gpt.layout().count()];
    gpt.layout().init(1, 0..parameters.len(), &mut parameters);
    gpt.load(0, &parameters);
    let count = config.micro_batch * config.context;
    let tokens: Vec<u32> = (0..count as u32).map(|i| i * i % 251).collect();
    let batch =
        Batch { rows: config.micro_batch, targets: tokens.clone(), tokens, features: Vec::new() };
    let pass = Pass { first: true, last: true, scale: 1.0, place: PassPlace::FIRST };
    let mut exchange = GradientCollector::default();
    let seconds = (0..12).map(|_| {
        let start = Instant::now();
        gpt.gradient(&batch, pass, &mut exchange).expect("a batch of the model's shape");
        start.elapsed().as_secs_f64()
    });
    count as f64 / seconds.fold(f64::INFINITY, f64::min)
}
