//! The head of a safetensors file: eight bytes with the length of a JSON text, then the text. It
//! names each tensor with its type, its shape, and its bytes among the data that follow.
//!
//! Every head that is read is hostile. A [`Head`] has been checked: its tensors cover the data
//! exactly once, and each has as many bytes as its shape takes.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::names::shown;

/// Bytes before the JSON text.
pub const LENGTH_BYTES: u64 = 8;
/// The longest head that is read, bytes. The format allows 100 MB, which would take a gigabyte of
/// memory. The head of GPT-2 XL has 60 kB.
pub const MAX_HEAD_BYTES: u64 = 32 << 20;

const METADATA: &str = "__metadata__";

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementType {
    /// 32 bits, IEEE single precision.
    F32,
    /// The upper half of an f32.
    Bf16,
    /// 16 bits, IEEE half precision.
    F16,
    /// Another type, which no weight of a model here has.
    Other,
}

impl ElementType {
    fn of(name: &str) -> Self {
        match name {
            "F32" => Self::F32,
            "BF16" => Self::Bf16,
            "F16" => Self::F16,
            _ => Self::Other,
        }
    }

    /// The name in a head. None for other types, which nothing here writes.
    fn name(self) -> Option<&'static str> {
        match self {
            Self::F32 => Some("F32"),
            Self::Bf16 => Some("BF16"),
            Self::F16 => Some("F16"),
            Self::Other => None,
        }
    }

    /// Bytes of an element. None for other types.
    pub fn bytes(self) -> Option<u64> {
        match self {
            Self::F32 => Some(4),
            Self::Bf16 | Self::F16 => Some(2),
            Self::Other => None,
        }
    }
}

/// One tensor of a head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorHead {
    /// The name of the tensor, unique in its file.
    pub name: String,
    /// The type of its elements.
    pub element: ElementType,
    /// The sizes of its dimensions, in row-major order.
    pub shape: Vec<u64>,
    /// Its bytes, counted from the first one after the head.
    pub data: Range<u64>,
}

/// A head that has passed all checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Free text for people and programs.
    pub metadata: BTreeMap<String, String>,
    /// The tensors, in the order of their bytes.
    pub tensors: Vec<TensorHead>,
}

/// Why bytes are not the head of a safetensors file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct HeadError(pub(crate) String);

/// The length of the whole head, from its first eight bytes.
///
/// # Errors
/// If the file is shorter than its head, or the head is longer than [`MAX_HEAD_BYTES`].
pub fn head_length(first: [u8; 8], file_bytes: u64) -> Result<u64, HeadError> {
    let stated = u64::from_le_bytes(first);
    let length = stated.checked_add(LENGTH_BYTES).filter(|length| *length <= MAX_HEAD_BYTES);
    let length = length.ok_or_else(|| {
        HeadError(format!("its head states {stated} bytes, which is not a safetensors file's"))
    })?;
    if length > file_bytes {
        let problem = format!("it ends inside its head: {file_bytes} bytes of at least {length}");
        return Err(HeadError(problem));
    }
    Ok(length)
}

impl Head {
    /// Reads the JSON text of a head. `data_bytes` follow the head in the file.
    ///
    /// # Errors
    /// If the text is none, or its tensors do not cover the data exactly once.
    pub fn parse(text: &[u8], data_bytes: u64) -> Result<Self, HeadError> {
        let raw: RawHead = serde_json::from_slice(text)
            .map_err(|error| HeadError(format!("its head cannot be read: {error}")))?;
        let mut tensors: Vec<_> = raw
            .tensors
            .into_iter()
            .map(|(name, raw)| TensorHead::check(name, raw))
            .collect::<Result<_, _>>()?;
        tensors.sort_by_key(|tensor| (tensor.data.start, tensor.data.end));
        let mut end = 0;
        for TensorHead { name, data, .. } in &tensors {
            if data.start != end {
                let problem =
                    format!("tensor \"{}\" does not begin where the last ends", shown(name));
                return Err(HeadError(problem));
            }
            end = data.end;
        }
        if end != data_bytes {
            let problem = format!("its tensors take {end} bytes, and {data_bytes} follow its head");
            return Err(HeadError(problem));
        }
        Ok(Self { metadata: raw.metadata, tensors })
    }

    /// The whole head: length and text. The text is padded with spaces to eight bytes, and to
    /// `reserved` bytes if that is more.
    ///
    /// # Panics
    /// If a tensor has another type than those that weights have.
    pub fn to_bytes(&self, reserved: usize) -> Vec<u8> {
        let mut entries = Map::new();
        if !self.metadata.is_empty() {
            entries.insert(METADATA.into(), json!(self.metadata));
        }
        for TensorHead { name, element, shape, data } in &self.tensors {
            let dtype = element.name().expect("only types of weights are written");
            let entry = json!({
                "dtype": dtype, "shape": shape, "data_offsets": [data.start, data.end],
            });
            entries.insert(name.clone(), entry);
        }
        let mut text = Value::Object(entries).to_string().into_bytes();
        let length = (text.len().next_multiple_of(8)).max(reserved.saturating_sub(8));
        text.resize(length, b' ');
        let mut bytes = (length as u64).to_le_bytes().to_vec();
        bytes.extend(text);
        bytes
    }
}

impl TensorHead {
    /// A tensor with its bytes from `start` on. A shape that overflows is the caller's fault.
    pub fn at(start: u64, name: String, element: ElementType, shape: Vec<u64>) -> Self {
        let bytes = shape.iter().product::<u64>() * element.bytes().expect("a type of weights");
        Self { name, element, shape, data: start..start + bytes }
    }

    fn check(name: String, raw: RawTensor) -> Result<Self, HeadError> {
        let RawTensor { dtype, shape, data_offsets: (start, end) } = raw;
        let element = ElementType::of(&dtype);
        let count = shape.iter().try_fold(1_u64, |count, extent| count.checked_mul(*extent));
        let fits = match element.bytes() {
            Some(bytes) => {
                let bytes = count.and_then(|count| count.checked_mul(bytes));
                bytes.is_some() && bytes == end.checked_sub(start)
            }
            None => start <= end,
        };
        if !fits {
            let problem = format!("tensor \"{}\" has not the bytes of its shape", shown(&name));
            return Err(HeadError(problem));
        }
        Ok(Self { name, element, shape, data: start..end })
    }
}

#[derive(Serialize, Deserialize)]
struct RawTensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// A head as it is written. It is read entry by entry, so that no tree of the text is built.
#[derive(Default)]
struct RawHead {
    metadata: BTreeMap<String, String>,
    tensors: BTreeMap<String, RawTensor>,
}

impl<'de> Deserialize<'de> for RawHead {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(HeadVisitor)
    }
}

struct HeadVisitor;

impl<'de> Visitor<'de> for HeadVisitor {
    type Value = RawHead;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<RawHead, A::Error> {
        let mut head = RawHead::default();
        while let Some(name) = entries.next_key::<String>()? {
            if name == METADATA {
                head.metadata = entries.next_value()?;
            } else {
                head.tensors.insert(name, entries.next_value()?);
            }
        }
        Ok(head)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use safetensors::SafeTensors;

    use super::*;

    fn head() -> Head {
        let first = TensorHead::at(0, "a".into(), ElementType::F32, vec![2, 3]);
        let second = TensorHead::at(24, "b".into(), ElementType::Bf16, vec![4]);
        Head { metadata: [("k".into(), "v".into())].into(), tensors: vec![first, second] }
    }

    #[test]
    fn a_head_is_read_as_it_was_written_and_by_others() {
        let (head, data) = (head(), 32);
        let bytes = head.to_bytes(0);
        let length = head_length(*bytes.first_chunk().expect("8"), 1 << 20).expect("a length");
        assert_eq!((length as usize, bytes.len() % 8), (bytes.len(), 0));
        assert_eq!(Head::parse(&bytes[8..], data), Ok(head.clone()));
        assert_eq!(head.to_bytes(512).len(), 512, "room may be reserved");
        let file = [head.to_bytes(512), vec![0; data as usize]].concat();
        let read = SafeTensors::deserialize(&file).expect("valid");
        assert_eq!(read.tensor("a").expect("named").shape(), [2, 3]);
        assert_eq!(read.tensor("b").expect("named").dtype(), safetensors::Dtype::BF16);
    }

    #[test]
    fn a_length_that_cannot_be_is_refused_before_memory_is_taken() {
        for (stated, file) in [(u64::MAX, 1 << 40), (1 << 30, 1 << 40), (100, 107), (0, 7)] {
            assert!(head_length(stated_bytes(stated), file).is_err(), "{stated} in {file}");
        }
        assert_eq!(head_length(stated_bytes(100), 108), Ok(108));
    }

    fn stated_bytes(stated: u64) -> [u8; 8] {
        stated.to_le_bytes()
    }

    #[test]
    fn heads_that_lie_are_refused() {
        let one = |shape: &str, offsets: &str| {
            format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#)
        };
        assert!(Head::parse(one("[2]", "[0,8]").as_bytes(), 8).is_ok());
        for (shape, offsets) in [
            ("[2]", "[0,12]"),
            ("[2]", "[8,0]"),
            ("[2]", "[4,12]"),
            ("[2]", "[-1,8]"),
            ("[4294967296,4294967296,4]", "[0,0]"),
            ("[18446744073709551615]", "[0,8]"),
            ("[2.5]", "[0,8]"),
            ("2", "[0,8]"),
            ("[2]", "[0]"),
        ] {
            assert!(Head::parse(one(shape, offsets).as_bytes(), 8).is_err(), "{shape} {offsets}");
        }
        let twice = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                        "b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
        assert!(Head::parse(twice.as_bytes(), 4).is_err(), "two tensors share bytes");
        for text in ["", "[]", "{", "1", "{\"a\":1}", "{\"__metadata__\":{\"a\":1}}", "\u{0}"] {
            assert!(Head::parse(text.as_bytes(), 0).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_head_or_an_error(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Head::parse(&text, 8);
        }

        #[test]
        fn any_changed_byte_gives_a_head_or_an_error(at in 8_usize..200, byte in any::<u8>()) {
            let mut bytes = head().to_bytes(0);
            let at = at % (bytes.len() - 8) + 8;
            bytes[at] = byte;
            if let Ok(head) = Head::parse(&bytes[8..], 32) {
                prop_assert_eq!(head.tensors.last().map(|it| it.data.end), Some(32));
            }
        }
    }
}
