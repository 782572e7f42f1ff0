//! Initial weights from elsewhere: a safetensors file, or a folder as `transformers` writes it.
//!
//! Names and shapes are checked against the model's layout before any weight is read. Then every
//! owner reads its own ranges of the flat vector. f32 weights keep their bits. bf16 and f16 weights
//! become the f32 of the same value.

mod source;

use std::ops::Range;
use std::path::Path;

use everstep_kernels::layout::Layout;

use crate::bytes_of::Encoder;
use crate::digest::Digest;
use crate::head::ElementType;
use crate::names::{FileName, shown};
use crate::store::{Environment, Place, Store, StoreError, place};
use source::{ForeignTensor, read_sources};

/// Elements that are read at once.
const PIECE: usize = 1 << 20;
/// The tied head, as some files have it: it must be the embedding.
const HEAD: &str = "lm_head.weight";
/// The embedding of a GPT.
const EMBEDDING: &str = "wte.weight";
/// What `transformers` puts before the names of a GPT's tensors.
const PREFIX: &str = "transformer.";

/// Where initial weights are: `[model] init`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightsPlace {
    /// The folder with the files of weights.
    pub place: Place,
    /// The file in it. None: `model.safetensors`, or the files of its index.
    pub file: Option<FileName>,
}

impl std::str::FromStr for WeightsPlace {
    type Err = StoreError;

    /// A folder, or a file whose name ends in `.safetensors`.
    fn from_str(text: &str) -> Result<Self, StoreError> {
        if !text.ends_with(".safetensors") {
            return Ok(Self { place: text.parse()?, file: None });
        }
        let (folder, file) = match text.rsplit_once('/') {
            None => (".", text),
            Some(("", file)) => ("/", file),
            Some(parts) => parts,
        };
        let refuse = |error: crate::names::NameError| {
            StoreError::refuse(shown(text), format!("{error}. Rename the file"))
        };
        Ok(Self { place: folder.parse()?, file: Some(file.parse().map_err(refuse)?) })
    }
}

/// Why weights cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// They cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file is not in the safetensors format.
    #[error("{place}: {file}: {problem}")]
    File {
        /// The folder that was searched.
        place: String,
        /// The file that is of another format.
        file: FileName,
        /// What is wrong with it.
        problem: String,
    },
    /// They are not those of the run's model.
    #[error("{place}: {problem}")]
    Model {
        /// The folder that was searched.
        place: String,
        /// How the weights differ from the model, in words.
        problem: String,
    },
}

/// Weights that fit a model.
pub struct InitialWeights {
    store: Box<dyn Store>,
    /// The tensors of the layout, in its order, each with its bytes.
    tensors: Vec<(Range<usize>, ForeignTensor)>,
    /// The head, if the files have one.
    head: Option<ForeignTensor>,
    count: usize,
}

impl InitialWeights {
    /// Finds the weights of a model with this layout. Reads heads alone.
    ///
    /// # Errors
    /// If they cannot be read, or are not those of the model: the first tensor that differs.
    pub fn open(
        from: &WeightsPlace,
        environment: &Environment,
        layout: &Layout,
    ) -> Result<Self, ImportError> {
        let store = match &from.place {
            Place::Directory(path) => existing(path)?,
            bucket => place::open(bucket, environment)?,
        };
        let mut sources = read_sources(&*store, from.file.as_ref())?;
        let model = |problem: String| {
            let place = store.place().to_string();
            Err(ImportError::Model { place, problem })
        };
        let mut tensors = Vec::new();
        for tensor in layout.tensors() {
            let name = shown(&tensor.name);
            let found = sources.remove(&tensor.name);
            let found = found.or_else(|| sources.remove(&format!("{PREFIX}{}", tensor.name)));
            let Some(source) = found else {
                return model(format!("there is no tensor \"{name}\""));
            };
            let theirs: Vec<usize> = source.shape.iter().map(|extent| *extent as usize).collect();
            if theirs != tensor.shape {
                let ours = &tensor.shape;
                return model(format!(
                    "tensor \"{name}\" has the shape {theirs:?}, and the run's model {ours:?}"
                ));
            }
            if source.element == ElementType::Other {
                return model(format!("tensor \"{name}\" is not f32, bf16 or f16"));
            }
            tensors.push((tensor.range(), source));
        }
        let head = sources.remove(HEAD).filter(|_| layout.tensors().iter().all(|t| t.name != HEAD));
        if let Some(other) = sources.keys().find(|name| !is_mask(name)) {
            let name = shown(other);
            return model(format!("tensor \"{name}\" is none of the run's model"));
        }
        Ok(Self { store, tensors, head, count: layout.count() })
    }

    /// Reads a range of the flat vector.
    ///
    /// # Errors
    /// If it cannot be read, or a weight is not finite.
    ///
    /// # Panics
    /// If the range is not inside the vector, or `values` is not as long.
    pub fn read(&self, range: Range<usize>, values: &mut [f32]) -> Result<(), ImportError> {
        assert!(range.end <= self.count && range.len() == values.len(), "a range of the vector");
        let first = self.tensors.partition_point(|(whole, _)| whole.end <= range.start);
        for (whole, source) in &self.tensors[first..] {
            let part = whole.start.max(range.start)..whole.end.min(range.end);
            if part.is_empty() {
                break;
            }
            let inside = part.start - whole.start..part.end - whole.start;
            let values = &mut values[part.start - range.start..part.end - range.start];
            self.read_source(source, inside, values)?;
        }
        Ok(())
    }

    /// BLAKE3 of all master weights, f32, little-endian: it stands in the run's specification. This
    /// reads everything once. `take` gets each piece, in order: where it begins, and its values.
    ///
    /// # Errors
    /// If they cannot be read, a weight is not finite, or the head is not the embedding.
    pub fn digest(&self, take: &mut dyn FnMut(usize, &mut [f32])) -> Result<Digest, ImportError> {
        self.check_head()?;
        let mut hasher = blake3::Hasher::new();
        let mut encoder = Encoder::default();
        for start in (0..self.count).step_by(PIECE) {
            let range = start..self.count.min(start + PIECE);
            let mut values = vec![0.0; range.len()];
            self.read(range, &mut values)?;
            encoder.each(&values, &mut |bytes| {
                hasher.update(bytes);
            });
            take(start, &mut values);
        }
        Ok(Digest(*hasher.finalize().as_bytes()))
    }

    /// The models here tie the head to the embedding, so another head cannot be used.
    fn check_head(&self) -> Result<(), ImportError> {
        let Some(head) = &self.head else { return Ok(()) };
        let place = self.store.place().to_string();
        let embedding = self.tensors.iter().find(|(_, source)| source.name.ends_with(EMBEDDING));
        let same = |(_, embedding): &(Range<usize>, ForeignTensor)| embedding.shape == head.shape;
        let Some((whole, embedding)) = embedding.filter(|it| same(it)) else {
            let problem = format!("tensor \"{HEAD}\" is none of the run's model");
            return Err(ImportError::Model { place, problem });
        };
        for start in (0..whole.len()).step_by(PIECE) {
            let range = start..whole.len().min(start + PIECE);
            let (mut ours, mut theirs) = (vec![0.0; range.len()], vec![0.0; range.len()]);
            self.read_source(embedding, range.clone(), &mut ours)?;
            self.read_source(head, range, &mut theirs)?;
            if ours != theirs {
                let problem = format!(
                    "tensor \"{HEAD}\" is not the embedding, and the run's model has no head of \
                     its own"
                );
                return Err(ImportError::Model { place, problem });
            }
        }
        Ok(())
    }

    fn read_source(
        &self,
        source: &ForeignTensor,
        range: Range<usize>,
        values: &mut [f32],
    ) -> Result<(), ImportError> {
        source.read(&*self.store, range, values)?;
        if values.iter().all(|value| value.is_finite()) {
            return Ok(());
        }
        let problem = format!("tensor \"{}\" has a weight that is not finite", shown(&source.name));
        Err(ImportError::Model { place: self.store.place().to_string(), problem })
    }
}

/// A folder that must be there already.
fn existing(path: &Path) -> Result<Box<dyn Store>, StoreError> {
    if !path.is_dir() {
        let why = "there is no such folder. Name a folder or a file of weights";
        return Err(StoreError::refuse(path.display().to_string(), why));
    }
    place::open(&Place::Directory(path.into()), &Environment::default())
}

/// The causal masks that old files of GPT-2 have among the weights.
fn is_mask(name: &str) -> bool {
    let name = name.strip_prefix(PREFIX).unwrap_or(name);
    name.starts_with("h.") && (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"))
}
