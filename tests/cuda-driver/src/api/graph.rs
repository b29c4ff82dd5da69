//! CUDA graphs: work recorded by a stream capture and launched as a unit.

use super::capture::Graph;
use super::error::Error;
use super::state::{Driver, Handle, Outcome};
use super::work::Work;
use super::{driver_functions, write_result};
use std::ffi::{c_uint, c_void};
use std::sync::Arc;

impl Driver {
    /// Records work of a captured stream.
    pub fn record(&mut self, capture: u64, stream: u64, work: Work) -> Outcome {
        let state = self.captures.get_mut(&capture).ok_or(Error::CAPTURE_INVALIDATED)?;
        if !state.is_valid {
            return Err(Error::CAPTURE_INVALIDATED);
        }
        if !self.config.early_captures && matches!(&work, Work::Launch(launch) if launch.is_early) {
            state.is_valid = false;
            return Err(Error::INVALID_HANDLE);
        }
        state.order.begin(stream, &[]);
        state.nodes.push(work);
        if stream != state.origin {
            state.unjoined.insert(stream);
        }
        Ok(())
    }

    /// Ends the capture that began in `stream` and returns its graph.
    pub fn end_capture(&mut self, stream: u64) -> Outcome<Handle> {
        let key = self
            .streams
            .get(&stream)
            .and_then(|s| s.capture)
            .ok_or(Error::INVALID_VALUE)?;
        let capture = self.captures.get(&key).ok_or(Error::CAPTURE_INVALIDATED)?;
        if capture.origin != stream {
            return Err(Error::CAPTURE_UNMATCHED);
        }
        let capture = self.captures.remove(&key).ok_or(Error::CAPTURE_INVALIDATED)?;
        for stream in self.streams.values_mut().filter(|s| s.capture == Some(key)) {
            stream.capture = None;
        }
        if !capture.is_valid {
            self.counts.broken_captures += 1;
            return Err(Error::CAPTURE_INVALIDATED);
        }
        if !capture.unjoined.is_empty() {
            return Err(Error::CAPTURE_UNJOINED);
        }
        let graph = Graph {
            device: capture.device,
            nodes: capture.nodes,
        };
        let handle = self.handle();
        self.graphs.insert(handle, Arc::new(graph));
        Ok(handle as Handle)
    }

    fn instantiate(&mut self, graph: Handle) -> Outcome<Handle> {
        self.check_initialized()?;
        let graph = self.graphs.get(&(graph as u64)).cloned().ok_or(Error::INVALID_HANDLE)?;
        let handle = self.handle();
        self.executables.insert(handle, graph);
        Ok(handle as Handle)
    }

    fn launch_graph(&mut self, executable: Handle, stream: Handle) -> Outcome {
        let (stream, device) = self.stream_key(stream)?;
        let graph = self
            .executables
            .get(&(executable as u64))
            .cloned()
            .ok_or(Error::INVALID_HANDLE)?;
        if graph.device != device {
            return Err(Error::INVALID_VALUE);
        }
        self.counts.graph_launches += 1;
        for work in &graph.nodes {
            self.submit(stream, device, work.clone())?;
        }
        Ok(())
    }

    /// Replaces the executable's graph if both graphs have the same kernels in the same order; returns
    /// whether they do.
    fn update(&mut self, executable: Handle, graph: Handle) -> Outcome<bool> {
        self.check_initialized()?;
        let new = self.graphs.get(&(graph as u64)).cloned().ok_or(Error::INVALID_HANDLE)?;
        let old = self
            .executables
            .get_mut(&(executable as u64))
            .ok_or(Error::INVALID_HANDLE)?;
        let is_same = |a: &Work, b: &Work| match (a, b) {
            (Work::Launch(a), Work::Launch(b)) => Arc::ptr_eq(&a.kernel, &b.kernel),
            (a, b) => std::mem::discriminant(a) == std::mem::discriminant(b),
        };
        let fits = old.nodes.len() == new.nodes.len() && old.nodes.iter().zip(&new.nodes).all(|(a, b)| is_same(a, b));
        if fits {
            *old = new;
        }
        Ok(fits)
    }
}

/// `CUgraphExecUpdateResultInfo`.
#[repr(C)]
pub struct UpdateResult {
    result: c_uint,
    node: *mut c_void,
    from_node: *mut c_void,
}

driver_functions! {
    /// Creates an executable from a graph.
    fn cuGraphInstantiateWithFlags(executable: *mut Handle, graph: Handle, _flags: u64) |driver| {
        let created = driver.instantiate(graph)?;
        write_result(executable, created)
    }

    /// Checks the handles; an upload needs no preparation.
    fn cuGraphUpload(executable: Handle, stream: Handle) |driver| {
        driver.stream_key(stream)?;
        driver.executables.get(&(executable as u64)).map(drop).ok_or(Error::INVALID_HANDLE)
    }

    /// Runs the work of a graph in order.
    fn cuGraphLaunch(executable: Handle, stream: Handle) |driver| {
        driver.launch_graph(executable, stream)
    }

    /// Destroys an executable.
    fn cuGraphExecDestroy(executable: Handle) |driver| {
        driver.executables.remove(&(executable as u64)).map(drop).ok_or(Error::INVALID_HANDLE)
    }

    /// Destroys a graph.
    fn cuGraphDestroy(graph: Handle) |driver| {
        driver.graphs.remove(&(graph as u64)).map(drop).ok_or(Error::INVALID_HANDLE)
    }

    /// Returns the number of nodes. Node handles are not supported.
    fn cuGraphGetNodes(graph: Handle, nodes: *mut Handle, count: *mut usize) |driver| {
        let n = driver.graphs.get(&(graph as u64)).ok_or(Error::INVALID_HANDLE)?.nodes.len();
        if !nodes.is_null() {
            return Err(Error::NOT_SUPPORTED);
        }
        write_result(count, n)
    }

    /// Replaces the arguments of an executable with those of a graph that has the same kernels.
    fn cuGraphExecUpdate_v2(executable: Handle, graph: Handle, result: *mut UpdateResult) |driver| {
        let fits = driver.update(executable, graph)?;
        // `CUgraphExecUpdateResult`: 0 is success, 2 is a changed topology.
        let (node, from_node) = (std::ptr::null_mut(), std::ptr::null_mut());
        write_result(result, UpdateResult { result: if fits { 0 } else { 2 }, node, from_node })?;
        if fits { Ok(()) } else { Err(Error::GRAPH_UPDATE_FAILURE) }
    }
}
