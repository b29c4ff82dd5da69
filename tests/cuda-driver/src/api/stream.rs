//! Driver functions for streams and events.

use super::capture::Capture;
use super::error::Error;
use super::state::{Driver, Event, Handle, LEGACY, Outcome, Stream};
use super::work::Work;
use super::{driver_functions, write_result};
use crate::device::order::Clock;
use std::ffi::{c_int, c_uint, c_void};
use std::time::Instant;

/// `CU_STREAM_NON_BLOCKING`: the stream does not synchronize with the default stream.
const NON_BLOCKING: u32 = 1;

impl Driver {
    fn create_stream(&mut self, flags: u32, priority: i32) -> Outcome<Handle> {
        let device = self.current()?;
        if flags > NON_BLOCKING {
            return Err(Error::INVALID_VALUE);
        }
        let key = self.handle();
        self.streams.insert(
            key,
            Stream {
                device,
                flags,
                priority,
                capture: None,
            },
        );
        Ok(key as Handle)
    }

    /// Runs work in a stream, or records it if the stream is being captured.
    pub fn submit(&mut self, stream: u64, device: u32, work: Work) -> Outcome {
        if let Some(capture) = self.streams.get(&stream).and_then(|s| s.capture) {
            return self.record(capture, stream, work);
        }
        self.reject_implicit_dependency(stream, device)?;
        let before = self.implicit_dependencies(stream, device);
        self.order.begin(stream, &before);
        self.execute(stream, device, &work)
    }

    /// Returns the streams that `stream` implicitly waits for: the default stream and the blocking streams of
    /// a device synchronize with each other.
    fn implicit_dependencies(&self, stream: u64, device: u32) -> Vec<u64> {
        let default = LEGACY | u64::from(device) << 40;
        let blocking = |s: &Stream| s.device == device && s.flags & NON_BLOCKING == 0;
        if stream == default {
            return self
                .streams
                .iter()
                .filter(|(_, s)| blocking(s))
                .map(|(key, _)| *key)
                .collect();
        }
        if self.streams.get(&stream).is_some_and(blocking) {
            vec![default]
        } else {
            Vec::new()
        }
    }

    /// Orders later work after all work of a stream, because the host waits for it.
    pub fn host_waits_for_stream(&mut self, stream: u64) {
        let clock = self.order.clock(stream);
        self.host_waits(&clock);
    }

    /// Orders later work after all work of a device, because the host waits for it.
    pub fn host_waits_for_device(&mut self, device: u32) {
        let own = self
            .streams
            .iter()
            .filter(|(_, s)| s.device == device)
            .map(|(key, _)| *key);
        let always = [1, 2].map(|key| key | u64::from(device) << 40);
        let destroyed = self
            .destroyed_streams
            .extract_if(.., |(_, of)| *of == device)
            .map(|(key, _)| key);
        let streams: Vec<u64> = own.chain(always).chain(destroyed).collect();
        streams
            .into_iter()
            .for_each(|stream| self.host_waits_for_stream(stream));
    }

    /// Removes the recorded accesses to a freed allocation.
    pub fn forget_accesses(&mut self, base: u64) {
        self.order.forget(base);
    }

    /// Returns an error and invalidates the captures in progress on a device, if their mode covers the
    /// calling thread. For calls that may synchronize, such as allocations.
    pub fn reject_during_capture(&mut self, device: u32) -> Outcome {
        self.invalidate(device, Error::CAPTURE_UNSUPPORTED, |_, capture| {
            capture.covers_this_thread()
        })
    }

    /// Returns an error and invalidates the captures in progress on a device. Synchronizing a context or
    /// device includes its captured streams, which no thread may wait for in any mode.
    pub fn reject_context_wait(&mut self, device: u32) -> Outcome {
        self.invalidate(device, Error::CAPTURE_UNSUPPORTED, |_, _| true)
    }

    /// Returns an error and invalidates the captures of blocking streams if `stream` is the legacy default
    /// stream, which would wait for them.
    fn reject_implicit_dependency(&mut self, stream: u64, device: u32) -> Outcome {
        if stream != LEGACY | u64::from(device) << 40 {
            return Ok(());
        }
        self.invalidate(device, Error::CAPTURE_IMPLICIT, |stream, _| {
            stream.flags & NON_BLOCKING == 0
        })
    }

    /// Invalidates the selected captures in progress on a device, and returns `error` if there are any.
    fn invalidate(&mut self, device: u32, error: Error, selects: impl Fn(&Stream, &Capture) -> bool) -> Outcome {
        let mut result = Ok(());
        for stream in self.streams.values().filter(|s| s.device == device) {
            let capture = stream.capture.and_then(|key| self.captures.get_mut(&key));
            if let Some(capture) = capture.filter(|capture| selects(stream, capture)) {
                capture.is_valid = false;
                result = Err(error);
            }
        }
        result
    }

    /// Returns an error and invalidates the capture if `stream` is being captured.
    fn reject_if_captured(&mut self, stream: u64) -> Outcome {
        let Some(key) = self.streams.get(&stream).and_then(|s| s.capture) else {
            return Ok(());
        };
        if let Some(capture) = self.captures.get_mut(&key) {
            capture.is_valid = false;
        }
        Err(Error::CAPTURE_UNSUPPORTED)
    }

    fn event(&mut self, event: Handle) -> Outcome<&mut Event> {
        self.check_initialized()?;
        self.events.get_mut(&(event as u64)).ok_or(Error::INVALID_HANDLE)
    }

    fn record_event(&mut self, event: Handle, stream: Handle) -> Outcome {
        let (stream, device) = self.stream_key(stream)?;
        let capture = self.streams.get(&stream).and_then(|s| s.capture);
        let before = self.implicit_dependencies(stream, device);
        let clock = match capture {
            Some(key) => self
                .captures
                .get(&key)
                .map_or_else(Clock::new, |c| c.order.clock(stream)),
            None => {
                self.order.begin(stream, &before);
                self.order.clock(stream)
            }
        };
        let event = self.event(event)?;
        (event.recorded, event.capture, event.clock, event.stream) = (Some(Instant::now()), capture, clock, stream);
        Ok(())
    }

    fn wait_event(&mut self, stream: Handle, event: Handle) -> Outcome {
        let (stream, _) = self.stream_key(stream)?;
        let Event {
            capture,
            clock,
            stream: recorded_in,
            ..
        } = self.event(event)?.clone();
        let own = self.streams.get(&stream).and_then(|s| s.capture);
        match (capture, own) {
            (None, None) => self.order.wait(stream, &clock),
            (Some(event_capture), own) if own.is_none_or(|own| own == event_capture) => {
                self.join_capture(event_capture, stream, recorded_in, &clock)?;
            }
            (None, Some(_)) | (Some(_), _) => return Err(Error::CAPTURE_ISOLATION),
        }
        Ok(())
    }

    /// Adds a stream to a capture, or makes it wait for another captured stream.
    fn join_capture(&mut self, capture: u64, stream: u64, recorded_in: u64, clock: &Clock) -> Outcome {
        let state = self.captures.get_mut(&capture).ok_or(Error::CAPTURE_INVALIDATED)?;
        state.order.wait(stream, clock);
        state.unjoined.remove(&recorded_in);
        if stream != state.origin {
            state.unjoined.insert(stream);
        }
        match self.streams.get_mut(&stream) {
            Some(stream) => stream.capture = Some(capture),
            None => return Err(Error::CAPTURE_UNSUPPORTED),
        }
        Ok(())
    }

    fn begin_capture(&mut self, stream: Handle, mode: u32) -> Outcome {
        let (key, _) = self.stream_key(stream)?;
        let capture = self.handle();
        let stream = self.streams.get_mut(&key).ok_or(Error::CAPTURE_UNSUPPORTED)?;
        if stream.capture.is_some() {
            return Err(Error::CAPTURE_UNSUPPORTED);
        }
        stream.capture = Some(capture);
        let mut begun = Capture::new(key, stream.device, mode);
        self.begun_captures += 1;
        // As if another library of the process had synchronized the context.
        begun.is_valid = self.config.break_capture != Some(self.begun_captures);
        self.captures.insert(capture, begun);
        Ok(())
    }

    fn capture_status(&self, stream: Handle) -> Outcome<(c_uint, u64)> {
        let (key, _) = self.stream_key(stream)?;
        let Some(capture) = self.streams.get(&key).and_then(|s| s.capture) else {
            return Ok((0, 0));
        };
        let is_valid = self.captures.get(&capture).is_some_and(|c| c.is_valid);
        Ok((if is_valid { 1 } else { 2 }, capture))
    }

    fn create_event(&mut self, flags: u32) -> Outcome<Handle> {
        let device = self.current()?;
        // Valid flags: blocking synchronization (1), no timing (2), interprocess (4).
        if flags > 7 {
            return Err(Error::INVALID_VALUE);
        }
        let key = self.handle();
        self.events.insert(
            key,
            Event {
                device,
                has_time: flags & 2 == 0,
                ..Event::default()
            },
        );
        Ok(key as Handle)
    }

    fn usable_event(&mut self, event: Handle) -> Outcome<Event> {
        let event = self.event(event)?.clone();
        self.check_not_failed(event.device)?;
        if event.capture.is_some() {
            Err(Error::CAPTURED_EVENT)
        } else {
            Ok(event)
        }
    }

    fn elapsed(&mut self, start: Handle, end: Handle) -> Outcome<f32> {
        let (start, end) = (self.usable_event(start)?, self.usable_event(end)?);
        if !start.has_time || !end.has_time {
            return Err(Error::INVALID_HANDLE);
        }
        match (start.recorded, end.recorded) {
            (Some(start), Some(end)) => Ok(end.saturating_duration_since(start).as_secs_f32() * 1000.0),
            _ => Err(Error::INVALID_HANDLE),
        }
    }
}

driver_functions! {
    /// Creates a stream on the current device.
    fn cuStreamCreate(stream: *mut Handle, flags: c_uint) |driver| {
        let created = driver.create_stream(flags, 0)?;
        write_result(stream, created)
    }

    /// Creates a stream with a priority.
    fn cuStreamCreateWithPriority(stream: *mut Handle, flags: c_uint, priority: c_int) |driver| {
        let created = driver.create_stream(flags, priority.clamp(-5, 0))?;
        write_result(stream, created)
    }

    /// Returns the priority of a stream.
    fn cuStreamGetPriority(stream: Handle, priority: *mut c_int) |driver| {
        let (key, _) = driver.stream_key(stream)?;
        write_result(priority, driver.streams.get(&key).map_or(0, |s| s.priority))
    }

    /// Destroys a stream.
    fn cuStreamDestroy_v2(stream: Handle) |driver| {
        driver.check_initialized()?;
        let key = stream as u64;
        let stream = driver.streams.remove(&key).ok_or(Error::INVALID_HANDLE)?;
        // Submitted work still completes, but the host can only wait for it through the device.
        driver.destroyed_streams.push((key, stream.device));
        driver.check_not_failed(stream.device)
    }

    /// Waits for the work of a stream.
    fn cuStreamSynchronize(stream: Handle) |driver| {
        let (key, device) = driver.stream_key(stream)?;
        driver.reject_if_captured(key)?;
        driver.host_waits_for_stream(key);
        driver.check_not_failed(device)
    }

    /// Returns whether the work of a stream is done, which is always the case.
    fn cuStreamQuery(stream: Handle) |driver| {
        let (key, device) = driver.stream_key(stream)?;
        driver.reject_if_captured(key)?;
        driver.host_waits_for_stream(key);
        driver.check_not_failed(device)
    }

    /// Makes later work of a stream wait for an event.
    fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: c_uint) |driver| {
        driver.wait_event(stream, event)
    }

    /// Runs a host function in stream order.
    fn cuLaunchHostFunc(stream: Handle, function: unsafe extern "C" fn(*mut c_void), argument: *mut c_void) |driver| {
        let (key, device) = driver.stream_key(stream)?;
        driver.submit(key, device, Work::Call(function, argument as u64))
    }

    /// Begins to record the work of a stream instead of running it.
    fn cuStreamBeginCapture_v2(stream: Handle, mode: c_uint) |driver| {
        driver.begin_capture(stream, mode)
    }

    /// Ends a capture and returns the recorded graph.
    fn cuStreamEndCapture(stream: Handle, graph: *mut Handle) |driver| {
        let (key, _) = driver.stream_key(stream)?;
        let ended = driver.end_capture(key)?;
        write_result(graph, ended)
    }

    /// Returns the capture status: 0 is none, 1 is active, 2 is invalidated.
    fn cuStreamIsCapturing(stream: Handle, status: *mut c_uint) |driver| {
        let (is_capturing, _) = driver.capture_status(stream)?;
        write_result(status, is_capturing)
    }

    /// Returns the capture status and the ID of the capture.
    fn cuStreamGetCaptureInfo_v2(
        stream: Handle,
        status: *mut c_uint,
        id: *mut u64,
        graph: *mut Handle,
        dependencies: *mut *const Handle,
        n_dependencies: *mut usize,
    ) |driver| {
        let (is_capturing, capture) = driver.capture_status(stream)?;
        write_result(status, is_capturing)?;
        if !graph.is_null() || !dependencies.is_null() || !n_dependencies.is_null() {
            return Err(Error::NOT_SUPPORTED);
        }
        if id.is_null() { Ok(()) } else { write_result(id, capture) }
    }

    /// Checks the pointer; the capture mode of the thread is not emulated.
    fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint) |driver| {
        driver.check_initialized()?;
        if mode.is_null() { Err(Error::INVALID_VALUE) } else { Ok(()) }
    }

    /// Creates an event on the current device.
    fn cuEventCreate(event: *mut Handle, flags: c_uint) |driver| {
        let created = driver.create_event(flags)?;
        write_result(event, created)
    }

    /// Destroys an event.
    fn cuEventDestroy_v2(event: Handle) |driver| {
        driver.check_initialized()?;
        let event = driver.events.remove(&(event as u64)).ok_or(Error::INVALID_HANDLE)?;
        driver.check_not_failed(event.device)
    }

    /// Records an event after the work submitted to a stream so far.
    fn cuEventRecord(event: Handle, stream: Handle) |driver| {
        driver.record_event(event, stream)
    }

    /// Records an event; the flags are ignored.
    fn cuEventRecordWithFlags(event: Handle, stream: Handle, _flags: c_uint) |driver| {
        driver.record_event(event, stream)
    }

    /// Waits for an event.
    fn cuEventSynchronize(event: Handle) |driver| {
        let event = driver.usable_event(event)?;
        driver.host_waits(&event.clock);
        Ok(())
    }

    /// Returns whether an event has completed, which is always the case.
    fn cuEventQuery(event: Handle) |driver| {
        let event = driver.usable_event(event)?;
        driver.reject_during_capture(event.device)?;
        driver.host_waits(&event.clock);
        Ok(())
    }

    /// Returns the milliseconds between two events.
    fn cuEventElapsedTime(milliseconds: *mut f32, start: Handle, end: Handle) |driver| {
        let elapsed = driver.elapsed(start, end)?;
        write_result(milliseconds, elapsed)
    }

    /// Returns the milliseconds between two events (newer symbol).
    fn cuEventElapsedTime_v2(milliseconds: *mut f32, start: Handle, end: Handle) |driver| {
        let elapsed = driver.elapsed(start, end)?;
        write_result(milliseconds, elapsed)
    }
}
