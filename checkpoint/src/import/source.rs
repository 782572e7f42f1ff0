//! Where each tensor of foreign weights is, and its values.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use everstep_kernels::reduce;
use half::f16;
use serde::Deserialize;

use super::ImportError;
use crate::bytes_of::decode;
use crate::head::{ElementType, Head, LENGTH_BYTES, MAX_HEAD_BYTES, head_length};
use crate::names::{FileName, ObjectName, shown};
use crate::store::{REQUEST_BYTES, Store};

/// Most files of one model.
const MAX_FILES: usize = 10_000;

/// A tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ForeignTensor {
    pub(super) name: String,
    pub(super) shape: Vec<u64>,
    pub(super) element: ElementType,
    file: FileName,
    /// Its bytes in the file.
    bytes: Range<u64>,
}

impl ForeignTensor {
    /// Reads these elements as f32. The element's type is one that weights have.
    pub(super) fn read(
        &self,
        store: &dyn Store,
        range: Range<usize>,
        values: &mut [f32],
    ) -> Result<(), ImportError> {
        let size = self.element.bytes().expect("a type of weights") as usize;
        let file = ObjectName::File(self.file.clone());
        let piece = REQUEST_BYTES / size;
        for (start, values) in range.step_by(piece).zip(values.chunks_mut(piece)) {
            let start = self.bytes.start + (start * size) as u64;
            let bytes = store.read(&file, start..start + (values.len() * size) as u64)?;
            match self.element {
                ElementType::F32 => decode(&bytes, values),
                ElementType::Bf16 => reduce::decode_bf16(&bytes, values),
                ElementType::F16 | ElementType::Other => {
                    for (bytes, value) in bytes.as_chunks().0.iter().zip(values) {
                        *value = f16::from_le_bytes(*bytes).to_f32();
                    }
                }
            }
        }
        Ok(())
    }
}

/// The list of files that `transformers` writes for a model in several files.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// All tensors of a file, or of a folder.
pub(super) fn read_sources(
    store: &dyn Store,
    file: Option<&FileName>,
) -> Result<BTreeMap<String, ForeignTensor>, ImportError> {
    let mut found = BTreeMap::new();
    for file in files(store, file)? {
        for source in read_head(store, &file)? {
            let name = source.name.clone();
            if found.insert(name.clone(), source).is_some() {
                let problem = format!("tensor \"{}\" is in two files", shown(&name));
                return Err(problem_of(store, &file, problem));
            }
        }
    }
    Ok(found)
}

/// The files of the weights: the given one, `model.safetensors`, or those of the index.
fn files(store: &dyn Store, file: Option<&FileName>) -> Result<Vec<FileName>, ImportError> {
    if let Some(file) = file {
        return Ok(vec![file.clone()]);
    }
    let (single, list) = (FileName::weights(), FileName::weights_index());
    match store.size(&ObjectName::File(single.clone())) {
        Ok(_) => return Ok(vec![single]),
        Err(error) if error.is_missing() => {}
        Err(error) => return Err(error.into()),
    }
    let bytes = match store.read_whole(&ObjectName::File(list.clone()), MAX_HEAD_BYTES) {
        Ok(bytes) => bytes,
        Err(error) if error.is_missing() => {
            let problem = "it is not there, and there is no index of several files".to_string();
            return Err(problem_of(store, &single, problem));
        }
        Err(error) => return Err(error.into()),
    };
    let index: Index = serde_json::from_slice(&bytes)
        .map_err(|error| problem_of(store, &list, format!("it cannot be read: {error}")))?;
    let names: BTreeSet<String> = index.weight_map.into_values().collect();
    if names.is_empty() || names.len() > MAX_FILES {
        let problem = format!("it lists {} files of 1 to {MAX_FILES}", names.len());
        return Err(problem_of(store, &list, problem));
    }
    let parsed = names.iter().map(|name| name.parse());
    let names: Result<_, crate::names::NameError> = parsed.collect();
    names.map_err(|error| problem_of(store, &list, error.to_string()))
}

fn read_head(store: &dyn Store, file: &FileName) -> Result<Vec<ForeignTensor>, ImportError> {
    let name = ObjectName::File(file.clone());
    let problem = |problem: crate::head::HeadError| problem_of(store, file, problem.0);
    let bytes = store.size(&name)?;
    let first = store.read(&name, 0..LENGTH_BYTES.min(bytes))?;
    let Some(first) = first.first_chunk() else {
        return Err(problem_of(store, file, format!("it has only {bytes} bytes")));
    };
    let start = head_length(*first, bytes).map_err(problem)?;
    let text = store.read(&name, LENGTH_BYTES..start)?;
    let head = Head::parse(&text, bytes - start).map_err(problem)?;
    let source = |tensor: crate::head::TensorHead| ForeignTensor {
        name: tensor.name,
        shape: tensor.shape,
        element: tensor.element,
        file: file.clone(),
        bytes: start + tensor.data.start..start + tensor.data.end,
    };
    Ok(head.tensors.into_iter().map(source).collect())
}

fn problem_of(store: &dyn Store, file: &FileName, problem: String) -> ImportError {
    ImportError::File { place: store.place().into(), file: file.clone(), problem }
}
