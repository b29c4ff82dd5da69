//! Tests of the vector clocks of streams.

use crate::device::order::{Range, StreamOrder};

fn range(from: u64, to: u64, writes: bool) -> Range {
    Range {
        base: 0,
        from,
        to,
        writes,
    }
}

fn work(order: &mut StreamOrder, stream: u64, accessed: Range) -> Result<(), String> {
    order.begin(stream, &[]);
    order.touch(stream, accessed, "work")
}

#[test]
fn unordered_stream_accesses_are_reported() {
    let mut order = StreamOrder::default();
    work(&mut order, 1, range(0, 100, true)).expect("there is no other access");
    work(&mut order, 2, range(100, 200, true)).expect("the bytes do not overlap");
    let text = work(&mut order, 2, range(50, 60, false)).expect_err("stream 1 wrote these bytes");
    assert!(text.contains("no event orders") && text.contains("50..60"), "{text}");
    let event = order.clock(1);
    order.wait(2, &event);
    work(&mut order, 2, range(50, 60, false)).expect("an event orders the accesses");
    work(&mut order, 1, range(50, 60, false)).expect("two reads do not conflict");
    work(&mut order, 1, range(50, 60, true)).expect_err("stream 2 read these bytes");
}

#[test]
fn event_orders_preceding_work_only() {
    let mut order = StreamOrder::default();
    work(&mut order, 1, range(0, 10, true)).expect("there is no other access");
    let event = order.clock(1);
    work(&mut order, 1, range(10, 20, true)).expect("work of one stream is ordered");
    order.wait(2, &event);
    work(&mut order, 2, range(0, 10, false)).expect("before the event");
    work(&mut order, 2, range(10, 20, false)).expect_err("after the event");
    // The happens-before order is transitive.
    let (second, third) = (order.clock(2), 3);
    order.wait(third, &second);
    work(&mut order, third, range(0, 10, true)).expect("ordered through stream 2");
}

#[test]
fn host_wait_orders_later_work() {
    let mut order = StreamOrder::default();
    work(&mut order, 1, range(0, 10, true)).expect("there is no other access");
    let clock = order.clock(1);
    order.host_waits(&clock);
    work(&mut order, 2, range(0, 10, true)).expect("the host waited for stream 1");
    work(&mut order, 1, range(0, 10, true)).expect_err("the host did not wait for stream 2");
    order.forget(0);
    work(&mut order, 1, range(0, 10, true)).expect("the earlier accesses are forgotten");
    order.begin(4, &[1]);
    order
        .touch(4, range(0, 10, true), "work")
        .expect("implied by the default stream");
}
