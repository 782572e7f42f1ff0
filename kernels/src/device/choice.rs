//! What a user writes after `--device`.

use std::fmt;
use std::str::FromStr;

/// What a user asks for: `auto`, `cpu`, `cuda`, or `cuda:1` for the device of that number. A
/// program may have other kinds than `cuda`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// A device beside the CPU if one can be used, else the CPU. Any device means the first one,
    /// until [`DeviceChoice::of_worker`] chooses.
    Auto(Option<usize>),
    /// The CPU.
    #[default]
    Cpu,
    /// A device of this kind, and nothing else.
    Kind(String, Option<usize>),
}

impl DeviceChoice {
    /// The device that the worker of this number, from 0, takes on a machine with these usable
    /// devices: one each, in turn, unless the choice names one.
    pub fn of_worker(&self, number: usize, devices: &[usize]) -> Self {
        let index = (!devices.is_empty()).then(|| devices[number % devices.len()]);
        match self {
            Self::Auto(None) => Self::Auto(index),
            Self::Kind(kind, None) => Self::Kind(kind.clone(), index),
            named => named.clone(),
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = NoDeviceChoice;

    fn from_str(text: &str) -> Result<Self, NoDeviceChoice> {
        let (kind, index) = text.split_once(':').map_or((text, None), |(k, i)| (k, Some(i)));
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        match (kind, index.map(str::parse).transpose()) {
            ("auto", Ok(index)) => Ok(Self::Auto(index)),
            ("cpu", Ok(None)) => Ok(Self::Cpu),
            ("cpu" | "", _) => Err(NoDeviceChoice),
            (kind, Ok(index)) if kind.chars().all(is_plain) => Ok(Self::Kind(kind.into(), index)),
            _ => Err(NoDeviceChoice),
        }
    }
}

/// A text that names no device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it must be auto, cpu, cuda, or cuda:N for the GPU of that number")]
pub struct NoDeviceChoice;

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, index) = match self {
            Self::Auto(index) => ("auto", index),
            Self::Cpu => ("cpu", &None),
            Self::Kind(kind, index) => (kind.as_str(), index),
        };
        match index {
            Some(index) => write!(f, "{kind}:{index}"),
            None => f.write_str(kind),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cuda(index: Option<usize>) -> DeviceChoice {
        DeviceChoice::Kind("cuda".into(), index)
    }

    #[test]
    fn a_choice_is_read_as_it_is_written() {
        use DeviceChoice::*;
        let choices = [
            ("auto", Auto(None)),
            ("auto:1", Auto(Some(1))),
            ("cpu", Cpu),
            ("cuda", cuda(None)),
            ("cuda:3", cuda(Some(3))),
            ("npu2:0", Kind("npu2".into(), Some(0))),
        ];
        for (text, choice) in choices {
            assert_eq!(text.parse(), Ok(choice.clone()));
            assert_eq!(choice.to_string(), text);
        }
        for text in ["", ":1", "a gpu", "cuda:", "cuda:x", "cpu:1", "cuda:-1", "CUDA"] {
            assert!(text.parse::<DeviceChoice>().is_err(), "{text}");
        }
    }

    #[test]
    fn workers_of_one_machine_take_one_gpu_each_unless_one_is_named() {
        use DeviceChoice::*;
        let chosen =
            |choice: DeviceChoice| [0, 1, 2].map(|number| choice.of_worker(number, &[0, 3]));
        assert_eq!(chosen(cuda(None)), [0, 3, 0].map(|index| cuda(Some(index))));
        assert_eq!(chosen(Auto(None)), [0, 3, 0].map(|index| Auto(Some(index))));
        assert_eq!(chosen(cuda(Some(1))), [(); 3].map(|()| cuda(Some(1))));
        assert_eq!(chosen(Cpu), [Cpu, Cpu, Cpu]);
        assert_eq!(Auto(None).of_worker(1, &[]), Auto(None));
    }
}
