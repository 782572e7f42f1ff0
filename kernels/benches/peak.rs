//! Peak f32 throughput of one core, GFLOP/s: fused multiply-adds on registers alone. Next to it a
//! pass of a model (`--bench step`) shows what is left to gain.

#[cfg(target_arch = "x86_64")]
fn main() {
    let gflops = x86_64::gflops();
    println!("peak: {gflops:.1} GFLOP/s");
}

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    eprintln!("the peak is measured on x86-64 only");
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::arch::x86_64::{
        _mm256_fmadd_ps, _mm256_set1_ps, _mm256_setzero_ps, _mm512_fmadd_ps, _mm512_set1_ps,
        _mm512_setzero_ps,
    };
    use std::hint::black_box;
    use std::time::Instant;

    /// Sums that do not wait for each other: enough to keep two units busy over a latency of four
    /// cycles, few enough for AVX2's 16 registers.
    const SUMS: usize = 12;
    const ROUNDS: usize = 1_000_000;

    /// The throughput of the fastest of 20 runs, since other programs only slow a run down.
    pub fn gflops() -> f64 {
        let (sums, lanes): (unsafe fn(f32, f32), _) = if is_x86_feature_detected!("avx512f") {
            (sums_of_16, 16)
        } else {
            let has_fma = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            assert!(has_fma, "this CPU has no fused multiply-add");
            (sums_of_8, 8)
        };
        let seconds = (0..20).map(|_| {
            let start = Instant::now();
            // SAFETY: the CPU has what the function is compiled for.
            unsafe { sums(black_box(0.5), black_box(1.0)) };
            start.elapsed().as_secs_f64()
        });
        (2 * ROUNDS * SUMS * lanes) as f64 / seconds.fold(f64::INFINITY, f64::min) / 1e9
    }

    /// A function that multiplies and adds with vectors of one width.
    macro_rules! sums {
        ($name:ident, $features:literal, $set:ident, $zero:ident, $fused:ident) => {
            #[target_feature(enable = $features)]
            fn $name(factor: f32, summand: f32) {
                let (factor, summand) = ($set(factor), $set(summand));
                let mut sums = [$zero(); SUMS];
                for _ in 0..ROUNDS {
                    for sum in &mut sums {
                        *sum = $fused(*sum, factor, summand);
                    }
                }
                black_box(sums);
            }
        };
    }

    sums!(sums_of_16, "avx512f", _mm512_set1_ps, _mm512_setzero_ps, _mm512_fmadd_ps);
    sums!(sums_of_8, "avx2,fma", _mm256_set1_ps, _mm256_setzero_ps, _mm256_fmadd_ps);
}
