//! Loading: architecture, hyper-parameters, vocabulary, tensors, in this order.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kernels::GgmlType;
use rayon::prelude::*;

use crate::backend::{self, Buffer, Device};
use crate::build::{BuildParams, Builder, Inputs, KvSpec, WeightLeaf};
use crate::gguf::{GgufFile, Metadata};
use crate::graph::{BufferId, Graph, Home, Name};
use crate::vocab::Vocab;

use super::{
    Architecture, Base, BuildGraph, Consumer, Fingerprint, HparamReader, ModelError, Registered, TableRow, TensorTable,
};

/// How to load a model.
#[derive(Clone)]
pub struct LoadParams {
    /// Name of the architecture to load the file as; `None` takes what the file says.
    pub arch: Option<String>,
    /// Where the weights go.
    pub device: Arc<dyn Device>,
    /// Use the file's pages in place where the device can; else copy.
    pub mmap: bool,
}

impl Default for LoadParams {
    fn default() -> LoadParams {
        LoadParams {
            arch: None,
            device: backend::default_device(),
            mmap: true,
        }
    }
}

/// A model ready to be run by any number of [contexts](crate::context::Context).
pub struct Model {
    path: PathBuf,
    arch: &'static Architecture,
    metadata: Metadata,
    base: Base,
    vocab: Vocab,
    graph: Box<dyn BuildGraph>,
    rows: Vec<TableRow>,
    leafs: Vec<WeightLeaf>,
    buffers: Vec<Arc<dyn Buffer>>,
    device: Arc<dyn Device>,
    kv_specs: Vec<KvSpec>,
    fingerprint: Fingerprint,
    n_bytes: usize,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Model({}, {})", self.arch.name, self.path.display())
    }
}

impl Model {
    /// Loads a file with one of the declared architectures.
    pub fn load(path: impl AsRef<Path>, archs: &[Registered], params: &LoadParams) -> Result<Model, ModelError> {
        let path = path.as_ref();
        let file = if params.mmap {
            GgufFile::open(path)?
        } else {
            GgufFile::read(path)?
        };
        Self::from_file(file, archs, params)
    }

    /// Loads an opened file, which may be in memory.
    pub fn from_file(file: GgufFile, archs: &[Registered], params: &LoadParams) -> Result<Model, ModelError> {
        let path = file.path().to_owned();
        let (arch, prefix) = load_arch(&file, archs, params.arch.as_deref())?;
        let (base, graph, rows) = declare(&file, arch, &prefix)?;
        let vocab = load_vocab(&file)?;
        let (leafs, buffers) = load_tensors(&file, &rows, params)?;
        let n_bytes = rows.iter().map(|r| file.tensors()[r.file_index].bytes).sum();
        let kv_specs = probe(arch, &base, graph.as_ref(), &leafs).map_err(|source| ModelError::Graph {
            path: path.clone(),
            source,
        })?;
        let fingerprint = Fingerprint::of(&file, arch, &prefix, &rows).map_err(|e| e.in_file(&path))?;
        let metadata = file.metadata().clone();
        let device = params.device.clone();
        Ok(Model {
            path,
            arch,
            metadata,
            base,
            vocab,
            graph,
            rows,
            leafs,
            buffers,
            device,
            kv_specs,
            fingerprint,
            n_bytes,
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// The architecture it was loaded as.
    pub fn arch(&self) -> &'static Architecture {
        self.arch
    }
    /// The file's metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }
    /// Shared hyper-parameters.
    pub fn base(&self) -> &Base {
        &self.base
    }
    /// Text to tokens and back.
    pub fn vocab(&self) -> &Vocab {
        &self.vocab
    }
    /// The tensor table.
    pub fn tensors(&self) -> &[TableRow] {
        &self.rows
    }
    /// Bytes of all weights.
    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }
    /// Number of parameters.
    pub fn n_params(&self) -> usize {
        self.rows.iter().map(|r| r.ne.iter().product::<usize>()).sum()
    }
    /// Where the weights are.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }
    /// What each attention call of the graph keeps per cell.
    pub fn kv_specs(&self) -> &[KvSpec] {
        &self.kv_specs
    }
    /// What tells this model from others.
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.fingerprint
    }
    /// Adds the model's graph to a builder.
    pub fn build(&self, b: &mut Builder<'_>) -> crate::graph::TensorId {
        self.graph.build(b)
    }
    pub(crate) fn leafs(&self) -> &[WeightLeaf] {
        &self.leafs
    }
    /// The buffers of the weights; a context registers them first and in order, so that the homes of the weights hold there.
    pub(crate) fn buffers(&self) -> &[Arc<dyn Buffer>] {
        &self.buffers
    }
}

/// Reads hyper-parameters and declares tensors for a header, whether or not the data is there.
/// Returns the table and the graph; used by loading and by checks over headers.
pub fn declare_header(
    header: &crate::gguf::Gguf,
    path: &Path,
    arch: &'static Architecture,
    prefix: &str,
) -> Result<(Base, Box<dyn BuildGraph>, Vec<TableRow>), ModelError> {
    let mut reader = HparamReader::new(&header.metadata, prefix);
    let mut table = TensorTable::new(header);
    // Tensors cannot be declared from hyper-parameters that are dummies.
    let graph = if reader.failed() {
        None
    } else {
        (arch.load)(&mut reader, &mut table)
    };
    let base = reader.base();
    let errors = reader.into_errors();
    let Some(graph) = graph.filter(|_| errors.is_empty()) else {
        return Err(ModelError::Hparams {
            path: path.to_owned(),
            errors,
        });
    };
    match table.finish() {
        Ok(rows) => Ok((base, graph, rows)),
        Err(errors) => Err(ModelError::Tensors {
            path: path.to_owned(),
            arch: arch.name,
            errors,
        }),
    }
}

fn declare(
    file: &GgufFile,
    arch: &'static Architecture,
    prefix: &str,
) -> Result<(Base, Box<dyn BuildGraph>, Vec<TableRow>), ModelError> {
    declare_header(file.header(), file.path(), arch, prefix)
}

/// The architecture to load as, and the prefix of the file's keys.
fn load_arch(
    file: &GgufFile,
    archs: &[Registered],
    wanted: Option<&str>,
) -> Result<(&'static Architecture, String), ModelError> {
    let prefix: String = file.require("general.architecture")?;
    let name = wanted.unwrap_or(&prefix);
    match archs.iter().find(|r| r.arch.name == name) {
        Some(r) => Ok((r.arch, prefix)),
        None => Err(ModelError::UnknownArchitecture {
            path: file.path().to_owned(),
            found: name.to_owned(),
            nearest: nearest_names(name, archs),
        }),
    }
}

/// Up to three supported names that share a long start with `name`.
fn nearest_names(name: &str, archs: &[Registered]) -> Vec<String> {
    let common = |a: &str| a.chars().zip(name.chars()).take_while(|(x, y)| x == y).count();
    let mut names: Vec<_> = archs
        .iter()
        .map(|r| (common(r.arch.name), r.arch.name))
        .filter(|(n, _)| *n >= 3)
        .collect();
    names.sort_by_key(|(n, _)| std::cmp::Reverse(*n));
    names.into_iter().take(3).map(|(_, a)| a.to_owned()).collect()
}

fn load_vocab(file: &GgufFile) -> Result<Vocab, ModelError> {
    Vocab::load(file.header()).map_err(|source| ModelError::Vocab {
        path: file.path().to_owned(),
        source,
    })
}

/// Places every row of the table: in the file's own pages where the device can use them, else in one new buffer.
fn load_tensors(
    file: &GgufFile,
    rows: &[TableRow],
    params: &LoadParams,
) -> Result<(Vec<WeightLeaf>, Vec<Arc<dyn Buffer>>), ModelError> {
    let fail = |source| ModelError::Backend {
        path: file.path().to_owned(),
        source,
    };
    for row in rows {
        if !kernels::can_dequantize(row.ty) {
            let (path, tensor) = (file.path().to_owned(), row.name.clone());
            return Err(ModelError::UnsupportedType {
                path,
                tensor,
                ty: row.ty,
            });
        }
    }
    let buffer_type = params.device.buffer_type();
    let mapped = params.device.buffer_from_host(file.mapping().clone());
    let in_place = |row: &TableRow| mapped.is_some() && stored_type(row) == row.ty;
    let mut homes = Vec::with_capacity(rows.len());
    let mut size = 0usize;
    let copies = BufferId(mapped.is_some() as u32);
    for row in rows {
        if in_place(row) {
            let offset = file.tensor_offset(&file.tensors()[row.file_index]) + row.offset;
            homes.push(Home {
                buffer: BufferId(0),
                offset,
            });
            continue;
        }
        size = size.next_multiple_of(buffer_type.alignment());
        homes.push(Home {
            buffer: copies,
            offset: size,
        });
        size += row_bytes(stored_type(row), row.ne);
    }
    let mut buffers: Vec<Arc<dyn Buffer>> = mapped.iter().cloned().collect();
    if size > 0 {
        let buffer = buffer_type.allocate(size).map_err(fail)?;
        rows.par_iter()
            .zip(&homes)
            .filter(|(row, _)| !in_place(row))
            .try_for_each(|(row, home)| buffer.write(home.offset, &stored_bytes(file, row)))
            .map_err(fail)?;
        buffers.push(buffer);
    }
    let leafs = rows
        .iter()
        .zip(homes)
        .map(|(row, home)| WeightLeaf {
            ty: stored_type(row),
            ne: row.ne,
            home,
            name: Name {
                base: row.base,
                layer: row.layer,
            },
        })
        .collect();
    Ok((leafs, buffers))
}

/// Tensors used element by element are few and small: they are kept as f32 whatever the file holds.
fn stored_type(row: &TableRow) -> GgmlType {
    if row.consumer == Consumer::Elementwise {
        GgmlType::F32
    } else {
        row.ty
    }
}

fn stored_bytes(file: &GgufFile, row: &TableRow) -> Vec<u8> {
    let data = file.tensor_data(&file.tensors()[row.file_index]);
    let bytes = &data[row.offset..row.offset + row_bytes(row.ty, row.ne)];
    if stored_type(row) == row.ty {
        return bytes.to_vec();
    }
    let mut floats = vec![0f32; row.ne.iter().product()];
    kernels::dequantize_row(row.ty, bytes, &mut floats);
    bytemuck::cast_slice(&floats).to_vec()
}

/// Bytes of a whole tensor. The reader has checked that rows are whole blocks and that the product fits.
fn row_bytes(ty: GgmlType, ne: [usize; 4]) -> usize {
    ne.iter().product::<usize>() / ty.block_size() * ty.block_bytes()
}

/// Builds the graph once without a memory, to learn what attention needs and that all shapes agree.
fn probe(
    arch: &'static Architecture,
    base: &Base,
    graph: &dyn BuildGraph,
    leafs: &[WeightLeaf],
) -> Result<Vec<KvSpec>, crate::build::BuildError> {
    let mut g = Graph::new();
    let (mut nodes, mut inputs, mut specs) = (Vec::new(), Inputs::default(), Vec::new());
    let params = BuildParams {
        n_tokens: 1,
        n_outputs: 1,
        rope_kind: arch.rope,
        rope: base.rope,
        n_rot: base.n_rot(),
        causal: true,
        half_gelu: false,
    };
    let mut b = Builder::probe(&mut g, leafs, &mut nodes, &mut inputs, params, &mut specs);
    let result = graph.build(&mut b);
    b.output(result);
    b.finish()?;
    Ok(specs)
}
