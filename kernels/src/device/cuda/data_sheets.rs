//! The most floating-point operations a second of an NVIDIA GPU, as its maker states it.
//!
//! The figures are for dense products, without sparsity: in 16 bits on tensor cores that add in
//! f32, in f32 on CUDA cores. A GPU outside the list has no figure, rather than a guess. A GPU with
//! a limited power or clock keeps the figure of its data sheet.

use crate::device::PeakFlops;

/// TFLOP/s of a GPU by the name that its driver gives it: in 16 bits, and in f32 if that is known
/// for sure.
struct DataSheet {
    name: &'static str,
    half: f64,
    single: Option<f64>,
}

const fn sheet(name: &'static str, half: f64, single: f64) -> DataSheet {
    DataSheet { name, half, single: Some(single) }
}

/// From NVIDIA's data sheets of the A10, A30, A40, A100, H100, H200, L4, L40S and HGX B200. If they
/// state products only "with sparsity", the figure is half of that. For GeForce from the white
/// papers of GA102 and Ada, appendix A.
const DATA_SHEETS: [DataSheet; 15] = [
    sheet("NVIDIA A10", 125.0, 31.2),
    sheet("NVIDIA A100 80GB PCIe", 312.0, 19.5),
    sheet("NVIDIA A100-PCIE-40GB", 312.0, 19.5),
    sheet("NVIDIA A100-SXM4-40GB", 312.0, 19.5),
    sheet("NVIDIA A100-SXM4-80GB", 312.0, 19.5),
    sheet("NVIDIA A30", 165.0, 10.3),
    sheet("NVIDIA A40", 149.7, 37.4),
    DataSheet { name: "NVIDIA B200", half: 2250.0, single: None },
    sheet("NVIDIA GeForce RTX 3090", 71.0, 35.6),
    sheet("NVIDIA GeForce RTX 4090", 165.2, 82.6),
    sheet("NVIDIA H100 80GB HBM3", 989.0, 67.0),
    sheet("NVIDIA H100 PCIe", 756.0, 51.0),
    sheet("NVIDIA H200", 989.0, 67.0),
    sheet("NVIDIA L4", 121.0, 30.3),
    sheet("NVIDIA L40S", 362.0, 91.6),
];

/// The most floating-point operations a second that this GPU does, as far as that is known for
/// sure. `name` is the driver's name for it, letter by letter: a name that differs in a word is
/// another product.
pub(super) fn peak_flops(name: &str) -> PeakFlops {
    let known = DATA_SHEETS.iter().find(|sheet| sheet.name == name);
    let flops = |tera: f64| (tera * 1e12).round() as u64;
    PeakFlops {
        single: known.and_then(|sheet| sheet.single).map(flops),
        half: known.map(|sheet| flops(sheet.half)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::precision::Precision;

    #[test]
    fn a_gpu_that_is_known_has_the_figures_of_its_data_sheet() {
        use Precision::*;
        for (name, precision, giga) in [
            ("NVIDIA A100-SXM4-80GB", Bf16, 312_000),
            ("NVIDIA A100-SXM4-80GB", F32, 19_500),
            ("NVIDIA H200", Bf16, 989_000),
            ("NVIDIA H200", Fp16, 989_000),
            ("NVIDIA H100 PCIe", Bf16, 756_000),
            ("NVIDIA B200", Bf16, 2_250_000),
        ] {
            let flops = peak_flops(name).of(precision);
            assert_eq!(flops, Some(giga * 1_000_000_000), "{name}, {precision}");
        }
    }

    #[test]
    fn nothing_is_guessed_of_a_gpu_that_is_not_known_or_of_a_part_of_one() {
        let others =
            ["cpu", "", "NVIDIA H200 NVL", "nvidia h200", "NVIDIA H200 MIG 1g.18gb", "H200"];
        for name in others {
            assert_eq!(peak_flops(name), PeakFlops::default(), "{name}");
        }
        assert_eq!(peak_flops("NVIDIA B200").of(Precision::F32), None, "data sheets differ");
    }

    #[test]
    fn each_gpu_is_listed_once_and_is_faster_in_16_bits() {
        assert!(DATA_SHEETS.is_sorted_by(|a, b| a.name < b.name));
        let is_faster = |sheet: &DataSheet| sheet.single.is_none_or(|single| single < sheet.half);
        assert!(DATA_SHEETS.iter().all(is_faster));
    }
}
