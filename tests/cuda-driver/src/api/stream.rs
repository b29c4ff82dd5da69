//! Streams and events.

use super::error::Error;
use super::graph::Capture;
use super::state::{Driver, Event, Handle, LEGACY, Outcome, Stream};
use super::work::Work;
use super::{driver_functions, put};
use crate::device::order::Clock;
use std::ffi::{c_int, c_uint, c_void};
use std::time::Instant;

/// A stream that does not wait for the default one.
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

    /// Does work in a stream, or records it if the stream is captured.
    pub fn submit(&mut self, stream: u64, device: u32, work: Work) -> Outcome {
        if let Some(capture) = self.streams.get(&stream).and_then(|s| s.capture) {
            return self.record(capture, stream, work);
        }
        let before = self.implied(stream, device);
        self.order.begin(stream, &before);
        self.execute(stream, device, &work)
    }

    /// The default stream and blocking ones of a device wait for each other.
    fn implied(&self, stream: u64, device: u32) -> Vec<u64> {
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

    /// The host waits for a stream's work.
    pub fn host_waits_for_stream(&mut self, stream: u64) {
        let clock = self.order.clock(stream);
        self.host_waits(&clock);
    }

    /// The host waits for all work of a device.
    pub fn host_waits_for_device(&mut self, device: u32) {
        let own = self
            .streams
            .iter()
            .filter(|(_, s)| s.device == device)
            .map(|(key, _)| *key);
        let always = [1, 2].map(|key| key | u64::from(device) << 40);
        let gone = self.gone.extract_if(.., |(_, of)| *of == device).map(|(key, _)| key);
        let streams: Vec<u64> = own.chain(always).chain(gone).collect();
        streams
            .into_iter()
            .for_each(|stream| self.host_waits_for_stream(stream));
    }

    /// An allocation is gone.
    pub fn forget_accesses(&mut self, base: u64) {
        self.order.forget(base);
    }

    /// A call that is not allowed while a stream of the device is captured makes the capture invalid, if its mode covers the calling thread.
    pub fn refuse_in_capture(&mut self, device: u32) -> Outcome {
        let captures: Vec<u64> = self
            .streams
            .values()
            .filter(|s| s.device == device)
            .filter_map(|s| s.capture)
            .filter(|key| self.captures.get(key).is_some_and(Capture::covers_this_thread))
            .collect();
        for key in &captures {
            if let Some(capture) = self.captures.get_mut(key) {
                capture.is_valid = false;
            }
        }
        if captures.is_empty() {
            Ok(())
        } else {
            Err(Error::CAPTURE_UNSUPPORTED)
        }
    }

    /// As [`Driver::refuse_in_capture`], of one stream.
    fn refuse_captured(&mut self, stream: u64) -> Outcome {
        let Some(key) = self.streams.get(&stream).and_then(|s| s.capture) else {
            return Ok(());
        };
        if let Some(capture) = self.captures.get_mut(&key) {
            capture.is_valid = false;
        }
        Err(Error::CAPTURE_UNSUPPORTED)
    }

    fn event(&mut self, event: Handle) -> Outcome<&mut Event> {
        self.initialized()?;
        self.events.get_mut(&(event as u64)).ok_or(Error::INVALID_HANDLE)
    }

    fn record_event(&mut self, event: Handle, stream: Handle) -> Outcome {
        let (stream, device) = self.stream_key(stream)?;
        let capture = self.streams.get(&stream).and_then(|s| s.capture);
        let before = self.implied(stream, device);
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
                self.join(event_capture, stream, recorded_in, &clock)?;
            }
            (None, Some(_)) | (Some(_), _) => return Err(Error::CAPTURE_ISOLATION),
        }
        Ok(())
    }

    /// A stream takes part in a capture from now on, or waits for another one that does.
    fn join(&mut self, capture: u64, stream: u64, recorded_in: u64, clock: &Clock) -> Outcome {
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
        self.captures.insert(capture, Capture::new(key, stream.device, mode));
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
        // Blocking synchronization, no timing, between processes.
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

    fn event_works(&mut self, event: Handle) -> Outcome<Event> {
        let event = self.event(event)?.clone();
        self.working(event.device)?;
        if event.capture.is_some() {
            Err(Error::CAPTURED_EVENT)
        } else {
            Ok(event)
        }
    }

    fn elapsed(&mut self, start: Handle, end: Handle) -> Outcome<f32> {
        let (start, end) = (self.event_works(start)?, self.event_works(end)?);
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
    /// A stream of the current device.
    fn cuStreamCreate(stream: *mut Handle, flags: c_uint) |driver| {
        let created = driver.create_stream(flags, 0)?;
        put(stream, created)
    }

    /// A stream that is preferred to others, or not.
    fn cuStreamCreateWithPriority(stream: *mut Handle, flags: c_uint, priority: c_int) |driver| {
        let created = driver.create_stream(flags, priority.clamp(-5, 0))?;
        put(stream, created)
    }

    /// A stream's priority.
    fn cuStreamGetPriority(stream: Handle, priority: *mut c_int) |driver| {
        let (key, _) = driver.stream_key(stream)?;
        put(priority, driver.streams.get(&key).map_or(0, |s| s.priority))
    }

    /// The end of a stream.
    fn cuStreamDestroy_v2(stream: Handle) |driver| {
        driver.initialized()?;
        let key = stream as u64;
        let stream = driver.streams.remove(&key).ok_or(Error::INVALID_HANDLE)?;
        // What it was given is still done: only who waits for the device knows when.
        driver.gone.push((key, stream.device));
        driver.working(stream.device)
    }

    /// Waits for a stream's work.
    fn cuStreamSynchronize(stream: Handle) |driver| {
        let (key, device) = driver.stream_key(stream)?;
        driver.refuse_captured(key)?;
        driver.host_waits_for_stream(key);
        driver.working(device)
    }

    /// Whether a stream's work is done: it is.
    fn cuStreamQuery(stream: Handle) |driver| {
        let (key, device) = driver.stream_key(stream)?;
        driver.refuse_captured(key)?;
        driver.host_waits_for_stream(key);
        driver.working(device)
    }

    /// Later work of a stream waits for an event.
    fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: c_uint) |driver| {
        driver.wait_event(stream, event)
    }

    /// A function of the program among a stream's work.
    fn cuLaunchHostFunc(stream: Handle, function: unsafe extern "C" fn(*mut c_void), argument: *mut c_void) |driver| {
        let (key, device) = driver.stream_key(stream)?;
        driver.submit(key, device, Work::Call(function, argument as u64))
    }

    /// Records a stream's work instead of doing it.
    fn cuStreamBeginCapture_v2(stream: Handle, mode: c_uint) |driver| {
        driver.begin_capture(stream, mode)
    }

    /// The recorded work as a graph.
    fn cuStreamEndCapture(stream: Handle, graph: *mut Handle) |driver| {
        let (key, _) = driver.stream_key(stream)?;
        let ended = driver.end_capture(key)?;
        put(graph, ended)
    }

    /// Whether a stream is captured (1), or was until something invalid (2).
    fn cuStreamIsCapturing(stream: Handle, status: *mut c_uint) |driver| {
        let (is_capturing, _) = driver.capture_status(stream)?;
        put(status, is_capturing)
    }

    /// As `cuStreamIsCapturing`, with the capture's number.
    fn cuStreamGetCaptureInfo_v2(
        stream: Handle,
        status: *mut c_uint,
        id: *mut u64,
        graph: *mut Handle,
        dependencies: *mut *const Handle,
        n_dependencies: *mut usize,
    ) |driver| {
        let (is_capturing, capture) = driver.capture_status(stream)?;
        put(status, is_capturing)?;
        if !graph.is_null() || !dependencies.is_null() || !n_dependencies.is_null() {
            return Err(Error::NOT_SUPPORTED);
        }
        if id.is_null() { Ok(()) } else { put(id, capture) }
    }

    /// Captures of the calling thread are of one mode.
    fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint) |driver| {
        driver.initialized()?;
        if mode.is_null() { Err(Error::INVALID_VALUE) } else { Ok(()) }
    }

    /// An event of the current device.
    fn cuEventCreate(event: *mut Handle, flags: c_uint) |driver| {
        let created = driver.create_event(flags)?;
        put(event, created)
    }

    /// The end of an event.
    fn cuEventDestroy_v2(event: Handle) |driver| {
        driver.initialized()?;
        let event = driver.events.remove(&(event as u64)).ok_or(Error::INVALID_HANDLE)?;
        driver.working(event.device)
    }

    /// The event stands for a stream's work so far.
    fn cuEventRecord(event: Handle, stream: Handle) |driver| {
        driver.record_event(event, stream)
    }

    /// As `cuEventRecord`.
    fn cuEventRecordWithFlags(event: Handle, stream: Handle, _flags: c_uint) |driver| {
        driver.record_event(event, stream)
    }

    /// Waits for an event.
    fn cuEventSynchronize(event: Handle) |driver| {
        let event = driver.event_works(event)?;
        driver.host_waits(&event.clock);
        Ok(())
    }

    /// Whether an event has happened: it has.
    fn cuEventQuery(event: Handle) |driver| {
        let event = driver.event_works(event)?;
        driver.host_waits(&event.clock);
        Ok(())
    }

    /// Milliseconds between two events.
    fn cuEventElapsedTime(milliseconds: *mut f32, start: Handle, end: Handle) |driver| {
        let elapsed = driver.elapsed(start, end)?;
        put(milliseconds, elapsed)
    }

    /// As `cuEventElapsedTime`.
    fn cuEventElapsedTime_v2(milliseconds: *mut f32, start: Handle, end: Handle) |driver| {
        let elapsed = driver.elapsed(start, end)?;
        put(milliseconds, elapsed)
    }
}
