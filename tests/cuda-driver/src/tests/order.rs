//! Clocks of streams.

use crate::device::order::{Order, Range};

fn range(from: u64, to: u64, writes: bool) -> Range {
    Range {
        base: 0,
        from,
        to,
        writes,
    }
}

fn work(order: &mut Order, stream: u64, touched: Range) -> Result<(), String> {
    order.begin(stream, &[]);
    order.touch(stream, touched, "work")
}

#[test]
fn streams_need_an_event_between() {
    let mut order = Order::default();
    work(&mut order, 1, range(0, 100, true)).expect("nobody else");
    work(&mut order, 2, range(100, 200, true)).expect("other bytes");
    let text = work(&mut order, 2, range(50, 60, false)).expect_err("stream 1 writes there");
    assert!(text.contains("no event between") && text.contains("50..60"), "{text}");
    let event = order.clock(1);
    order.wait(2, &event);
    work(&mut order, 2, range(50, 60, false)).expect("there is an event");
    work(&mut order, 1, range(50, 60, false)).expect("two readers");
    work(&mut order, 1, range(50, 60, true)).expect_err("stream 2 reads there");
}

#[test]
fn an_event_stands_for_what_was_before_it() {
    let mut order = Order::default();
    work(&mut order, 1, range(0, 10, true)).expect("nobody else");
    let event = order.clock(1);
    work(&mut order, 1, range(10, 20, true)).expect("the same stream");
    order.wait(2, &event);
    work(&mut order, 2, range(0, 10, false)).expect("before the event");
    work(&mut order, 2, range(10, 20, false)).expect_err("after the event");
    // By way of a third stream.
    let (second, third) = (order.clock(2), 3);
    order.wait(third, &second);
    work(&mut order, third, range(0, 10, true)).expect("ordered through stream 2");
}

#[test]
fn the_host_orders_what_it_waits_for() {
    let mut order = Order::default();
    work(&mut order, 1, range(0, 10, true)).expect("nobody else");
    let clock = order.clock(1);
    order.host_waits(&clock);
    work(&mut order, 2, range(0, 10, true)).expect("the host waited");
    work(&mut order, 1, range(0, 10, true)).expect_err("not for stream 2");
    order.forget(0);
    work(&mut order, 1, range(0, 10, true)).expect("the allocation is another one");
    order.begin(4, &[1]);
    order
        .touch(4, range(0, 10, true), "work")
        .expect("implied by the default stream");
}
