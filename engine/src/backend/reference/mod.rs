//! The reference backend: every op in plain scalar code on one thread, following its definition. It defines
//! the result of each op, and all other backends are compared with it.

mod array;
mod attention;
mod interleave;
mod linear_attention;
mod memory;
mod ops;
mod recur;
mod rope;
mod scratch;
mod select;
#[cfg(test)]
mod tests;
mod upload;
mod visible;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kernels::GgmlType;

use self::array::{Array, Ints};
use self::interleave::INTERLEAVED;
use self::memory::{Budget, ReferenceBuffer, ReferenceBufferType};
use self::scratch::Scratch;
use self::upload::LateUpload;
use super::machine::machine_memory;
use super::{
    Backend, BackendError, BackendParams, Buffer, BufferType, Device, DeviceKind, GraphView, MemoryMap, NodePlan, Plan,
    Registry, Stored, Upload, WeightStorage, rules,
};
use crate::graph::{BufferSlice, Graph, Layout, MAX_SRC, NO_ROW, Op, Recurrence, Tensor, TensorId};

const NAME: &str = "reference";

/// The registry of reference devices. Contains exactly one device.
pub struct ReferenceRegistry {
    device: Arc<dyn Device>,
}

impl ReferenceRegistry {
    /// Creates a registry whose device may use all of the machine's memory.
    pub fn new() -> ReferenceRegistry {
        let total = match machine_memory().1 {
            0 => usize::MAX,
            total => total,
        };
        ReferenceRegistry {
            device: Arc::new(ReferenceDevice::with_memory(total)),
        }
    }
}

impl Default for ReferenceRegistry {
    fn default() -> ReferenceRegistry {
        ReferenceRegistry::new()
    }
}

impl Registry for ReferenceRegistry {
    fn name(&self) -> &str {
        NAME
    }

    fn devices(&self) -> Vec<Arc<dyn Device>> {
        vec![self.device.clone()]
    }
}

/// A device with private memory of configurable size.
pub struct ReferenceDevice {
    budget: Arc<Budget>,
    interleaves: bool,
}

impl ReferenceDevice {
    /// Creates a device with `bytes` of memory.
    pub fn with_memory(bytes: usize) -> ReferenceDevice {
        ReferenceDevice {
            budget: Arc::new(Budget::new(bytes)),
            interleaves: false,
        }
    }

    /// Creates a device that stores matmul weights with their rows interleaved in groups of four, if type and
    /// shape permit.
    pub fn interleaving(bytes: usize) -> ReferenceDevice {
        ReferenceDevice {
            interleaves: true,
            ..ReferenceDevice::with_memory(bytes)
        }
    }
}

impl Device for ReferenceDevice {
    fn name(&self) -> &str {
        NAME
    }

    fn description(&self) -> String {
        "plain scalar code on one thread: slow, used to verify other backends".to_string()
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::Cpu
    }

    fn memory(&self) -> (usize, usize) {
        (self.budget.free(), self.budget.total)
    }

    fn buffer_type(&self) -> Arc<dyn BufferType> {
        Arc::new(ReferenceBufferType {
            budget: self.budget.clone(),
        })
    }

    fn supports_buffer_type(&self, buffer_type: &dyn BufferType) -> bool {
        // Compares names without `same_buffer_type`: the scheduler calls this often, and it must not
        // allocate.
        buffer_type.name() == NAME
    }

    fn weight_storage(&self) -> Vec<WeightStorage> {
        let layouts = if self.interleaves {
            vec![INTERLEAVED, Layout::Plain]
        } else {
            vec![Layout::Plain]
        };
        let storage = |layout| WeightStorage {
            buffer_type: self.buffer_type(),
            layout,
        };
        layouts.into_iter().map(storage).collect()
    }

    fn supports_op(&self, graph: &Graph, node: TensorId, _: &MemoryMap) -> bool {
        check(graph, node).is_ok()
    }

    fn upload(&self, buffer: Box<dyn Buffer>) -> Result<Box<dyn Upload>, BackendError> {
        Ok(Box::new(LateUpload::new(buffer)))
    }

    fn backend(self: Arc<Self>, _params: &BackendParams) -> Result<Box<dyn Backend>, BackendError> {
        Ok(Box::new(ReferenceBackend {
            device: self,
            scratch: Scratch::default(),
        }))
    }
}

struct ReferenceBackend {
    device: Arc<dyn Device>,
    scratch: Scratch,
}

impl Backend for ReferenceBackend {
    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn prepare(
        &mut self,
        view: &GraphView<'_>,
        _memory: &MemoryMap,
        old: Option<Box<dyn Plan>>,
    ) -> Result<Box<dyn Plan>, BackendError> {
        let graph = view.graph;
        NodePlan::prepare(view, old, |id| {
            check(graph, id).map_err(|_| rules::unsupported(graph, id))?;
            let node = graph.tensor(id);
            let operands = node.sources().map(|s| graph.tensor(s));
            let sizes = operands.chain([node]).map(scratch_bytes);
            self.scratch.reserve(sizes).map_err(|bytes| BackendError::OutOfMemory {
                buffer_type: NAME.to_string(),
                bytes,
            })
        })
    }

    fn run(
        &mut self,
        plan: &mut dyn Plan,
        graph: &Graph,
        memory: &mut MemoryMap,
        cancel: &AtomicBool,
    ) -> Result<(), BackendError> {
        let scratch = &self.scratch;
        NodePlan::run(plan, NAME, graph, cancel, |id| {
            Operands {
                graph,
                memory,
                scratch,
                id,
                node: graph.tensor(id),
            }
            .compute()
        })
    }
}

/// Checks that the node is supported. Matmul weights may be interleaved.
fn check(graph: &Graph, id: TensorId) -> Result<(), rules::Unsupported> {
    rules::check(graph, id)?;
    rules::layouts(graph, id, INTERLEAVED)
}

/// Returns the size in bytes of a tensor as an [`Array`] or [`Ints`].
fn scratch_bytes(t: &Tensor) -> usize {
    let each = match t.ty {
        GgmlType::I32 | GgmlType::I64 => size_of::<i64>(),
        _ => size_of::<f32>(),
    };
    t.nelements().saturating_mul(each)
}

/// A node with its evaluated operands.
struct Operands<'a> {
    graph: &'a Graph,
    memory: &'a mut MemoryMap,
    scratch: &'a Scratch,
    id: TensorId,
    node: &'a Tensor,
}

impl Operands<'_> {
    fn compute(&mut self) -> Result<(), BackendError> {
        let node = self.node;
        let result = match self.node.op {
            Op::None | Op::Reshape | Op::View | Op::Permute => return Ok(()),
            Op::SetRows => return self.set_rows(),
            Op::Recur(r) => return self.recur(r),
            Op::TopK { k } => return self.store_ints(&ops::top_k(&self.load(0)?, k)),
            Op::SelectBlocks(blocks) => {
                let cells = select::select_blocks(&self.load(0)?, &self.visible()?, &blocks);
                return self.store_ints(&cells);
            }
            Op::RecentCells { n } => return self.store_ints(&select::recent_cells(&self.visible()?, n)),
            Op::ShiftPositions { back, n_axes } => {
                return self.store_ints(&select::shift_positions(&self.ints(0)?, back, n_axes));
            }
            Op::IntDiv { by } => return self.store_ints(&ops::int_div(self.ints(0)?, by)),
            Op::NgramHash(hash) => return self.store_ints(&ops::ngram_hash(&self.load(0)?, &hash)),
            Op::Cast => ops::cast(&self.ints(0)?, self.scratch),
            Op::AttentionTemperature { scale, length, offset } => {
                ops::attention_temperature(&self.ints(0)?, self.scratch, scale, length, offset)
            }
            Op::GetRows if self.node.ty == GgmlType::I32 => {
                let rows = ops::get_int_rows(&self.ints(0)?, &self.ints(1)?, self.scratch);
                return self.store_ints(&self.found(rows)?);
            }
            Op::GetRows => self.found(ops::get_rows(&self.load(0)?, &self.ints(1)?))?,
            Op::MulMat => ops::mul_mat(&self.load(0)?, &self.load(1)?),
            Op::MulMatId => self.found(ops::mul_mat_id(&self.load(0)?, &self.load(1)?, &self.ints(2)?))?,
            Op::AddId => self.found(ops::add_id(&self.load(0)?, &self.load(1)?, &self.ints(2)?))?,
            Op::Add => ops::binary(&self.load(0)?, &self.load(1)?, |a, b| a + b),
            Op::Sub => ops::binary(&self.load(0)?, &self.load(1)?, |a, b| a - b),
            Op::Mul => ops::binary(&self.load(0)?, &self.load(1)?, |a, b| a * b),
            Op::Div => ops::binary(&self.load(0)?, &self.load(1)?, |a, b| a / b),
            Op::Scale { scale, bias } => ops::map(&self.load(0)?, |x| x * f64::from(scale) + f64::from(bias)),
            Op::Unary(f) => ops::map(&self.load(0)?, |x| ops::unary(f, x)),
            Op::Glu(f) => ops::binary(&self.load(0)?, &self.load(1)?, |a, b| ops::unary(f, a) * b),
            Op::RmsNorm { eps } => ops::rms_norm(&self.load(0)?, self.optional(1)?.as_ref(), eps),
            Op::Norm { eps } => ops::norm(&self.load(0)?, eps),
            Op::L2Norm { eps } => ops::l2_norm(&self.load(0)?, eps),
            Op::Sinkhorn { n, iterations, eps } => ops::sinkhorn(&self.load(0)?, n, iterations, eps),
            Op::Rope(p) => rope::rope(&self.load(0)?, &self.ints(1)?, self.optional(2)?.as_ref(), &p),
            Op::Attention(p) => attention::attention(
                &attention::Operands {
                    q: self.load(p.operands().q)?,
                    k: self.load(p.operands().k)?,
                    v: self.load(p.operands().v)?,
                    visible: self.visible()?,
                    biases: p.operands().biases.map(|i| self.load(i)).transpose()?,
                    sinks: p.operands().sinks.map(|i| self.load(i)).transpose()?,
                    selection: p.operands().selection.map(|i| self.ints(i)).transpose()?,
                },
                &p,
            ),
            Op::IndexScores => {
                let (q, k, weights) = (self.load(0)?, self.load(1)?, self.optional(8)?);
                select::index_scores(&q, &k, &self.visible()?, weights.as_ref())
            }
            Op::SoftMax { scale } => ops::soft_max(&self.load(0)?, scale),
            Op::TopMask { k } => ops::top_mask(&self.load(0)?, k),
            Op::SumRows => ops::sum_rows(&self.load(0)?),
            Op::Concat { dim } => ops::concat(&self.load(0)?, &self.load(1)?, usize::from(dim)),
            Op::Repeat => ops::repeat(&self.load(0)?, self.node.ne),
            Op::Clamp { min, max } => ops::map(&self.load(0)?, |x| x.max(f64::from(min)).min(f64::from(max))),
            Op::Cont => Array {
                ne: self.node.ne,
                data: self.load(0)?.data,
            },
        };
        self.with_bytes_mut(|bytes| result.write(node, bytes))
    }

    /// Loads the visible cells.
    fn visible(&self) -> Result<visible::Visible, BackendError> {
        let at = self
            .node
            .op
            .visible_cells()
            .expect("only ops with visible cells reach this function");
        Ok(visible::Visible {
            cell_pos: self.ints(at.cell_pos)?,
            pos: self.ints(at.pos)?,
            table: self.ints(at.table)?,
            starts: self.ints(at.starts)?,
            pages: self.ints(at.pages)?,
            masks: self.ints(at.masks)?,
        })
    }

    fn recur(&mut self, recurrence: Recurrence) -> Result<(), BackendError> {
        let (mut states, from, to) = (self.load(0)?, self.ints(1)?, self.ints(2)?);
        let mut operands = [const { None }; MAX_SRC];
        let n = self.node.sources().count() - 3;
        for (i, operand) in operands[..n].iter_mut().enumerate() {
            *operand = Some(self.load(3 + i)?);
        }
        let operands: [Option<&Array>; MAX_SRC] = std::array::from_fn(|i| operands[i].as_ref());
        let result = self.found(recur::recur(
            recurrence,
            &mut states,
            (&from, &to),
            &operands,
            self.node.ne,
        ))?;
        let (graph, node) = (self.graph, self.node);
        let id = node.source(0);
        self.with_bytes_mut_of(id, |bytes| states.write(graph.tensor(id), bytes))?;
        self.with_bytes_mut(|bytes| result.write(node, bytes))
    }

    fn set_rows(&mut self) -> Result<(), BackendError> {
        let (rows, ids) = (self.load(0)?, self.ints(2)?);
        let (ty, row_bytes) = (self.node.ty, self.node.row_bytes());
        for (t, &id) in ids.data.iter().enumerate().filter(|(_, id)| **id != NO_ROW) {
            let row = self.found(ops::row_number(id, self.node.ne[1]))?;
            let start = row * self.node.nb[1];
            self.with_bytes_mut(|bytes| {
                kernels::quantize_row(ty, rows.row([0, t, 0, 0]), &mut bytes[start..start + row_bytes]);
            })?;
        }
        Ok(())
    }

    fn load(&self, i: usize) -> Result<Array, BackendError> {
        let id = self.node.source(i);
        let tensor = self.graph.tensor(id);
        self.with_bytes(id, |bytes| match tensor.layout {
            Layout::Plain => Array::read(tensor, bytes, self.scratch),
            Layout::Repacked(_) => Array::read(tensor, &Stored::new(tensor, 0).unpack(bytes), self.scratch),
        })
    }

    fn optional(&self, i: usize) -> Result<Option<Array>, BackendError> {
        self.node.src[i].map(|_| self.load(i)).transpose()
    }

    fn ints(&self, i: usize) -> Result<Ints, BackendError> {
        let id = self.node.source(i);
        let tensor = self.graph.tensor(id);
        self.with_bytes(id, |bytes| Ints::read(tensor, bytes, self.scratch))
    }

    fn store_ints(&mut self, ints: &Ints) -> Result<(), BackendError> {
        let node = self.node;
        self.with_bytes_mut(|bytes| ints.write(node, bytes))
    }

    fn with_bytes<R>(&self, id: TensorId, f: impl FnOnce(&[u8]) -> R) -> Result<R, BackendError> {
        let home = self.home(id)?;
        let buffer = self.memory.get(home.buffer)?;
        let ours = buffer.as_any().downcast_ref::<ReferenceBuffer>();
        let ours = ours.ok_or_else(|| self.foreign(id, buffer))?;
        Ok(f(ours.part(home.offset, self.graph.tensor(id).nbytes())?))
    }

    fn with_bytes_mut<R>(&mut self, f: impl FnOnce(&mut [u8]) -> R) -> Result<R, BackendError> {
        self.with_bytes_mut_of(self.id, f)
    }

    fn with_bytes_mut_of<R>(&mut self, id: TensorId, f: impl FnOnce(&mut [u8]) -> R) -> Result<R, BackendError> {
        let home = self.home(id)?;
        let buffer = self.memory.get(home.buffer)?;
        if !buffer.as_any().is::<ReferenceBuffer>() {
            return Err(self.foreign(id, buffer));
        }
        let buffer = self.memory.get_mut(home.buffer)?.as_any_mut();
        let ours = buffer
            .downcast_mut::<ReferenceBuffer>()
            .expect("the buffer was downcast above");
        Ok(f(ours.part_mut(home.offset, self.graph.tensor(id).nbytes())?))
    }

    fn home(&self, id: TensorId) -> Result<BufferSlice, BackendError> {
        let no_memory = || self.error(format!("{} has no memory assigned", self.graph.tensor(id).name));
        self.graph.home(id).ok_or_else(no_memory)
    }

    fn foreign(&self, id: TensorId, buffer: &dyn Buffer) -> BackendError {
        let name = self.graph.tensor(id).name;
        self.error(format!(
            "cannot access {name}: it is in {:?} memory",
            buffer.buffer_type()
        ))
    }

    fn found<T>(&self, result: Result<T, ops::IndexOutOfRange>) -> Result<T, BackendError> {
        result.map_err(|e| {
            self.error(format!(
                "{}: index {} is out of range for a table of {} rows",
                self.node.name, e.row, e.rows
            ))
        })
    }

    fn error(&self, message: String) -> BackendError {
        BackendError::Device {
            device: NAME.to_string(),
            message,
        }
    }
}
