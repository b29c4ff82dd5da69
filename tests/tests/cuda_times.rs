//! Times of kernel launches (`LLAMA_CUDA_TIMES`, `llama bench --times`). The emulated driver returns the time of
//! its interpreter.

use std::collections::BTreeMap;

use engine::backend::cuda::{Counters, KernelTimes};
use kernels::{GgmlType, Precision};
use tests::emulator::with_device;
use tests::{decode_last, tokens};

use crate::cuda_fusion::quantized;

/// Every launch is measured once, with its own shape, and nothing runs as a CUDA graph.
#[test]
fn every_launch_is_measured() {
    with_device("cuda_times::every_launch_is_measured", || {
        let Some(counters) = Counters::find() else {
            eprintln!("skipped: only the emulated driver counts launches");
            return;
        };
        let tokens = tokens("llama-dense");
        let mut ctx = quantized("llama-dense", Some(GgmlType::Q4_0), Precision::Fast);
        KernelTimes::start();
        decode_last(&mut ctx, &tokens[..5], 0, 0);
        KernelTimes::take();
        counters.reset();
        for i in 5..11 {
            decode_last(&mut ctx, &tokens[i..=i], i, 0);
        }
        let times = KernelTimes::take();
        let counted: serde_json::Value = serde_json::from_str(&counters.json()).expect("the counters are JSON");
        assert_eq!(counted["graph_launches"], 0);
        let counted: BTreeMap<&str, u64> = (counted["kernels"].as_object().expect("kernels were launched").iter())
            .map(|(name, counts)| (name.as_str(), counts["launches"].as_u64().expect("a number")))
            .collect();
        let mut measured: BTreeMap<&str, u64> = BTreeMap::new();
        for time in &times {
            *measured.entry(&time.kernel).or_default() += time.launches;
            assert!(time.us_min > 0.0 && time.us_min <= time.us_median, "{time:?}");
            assert!(time.block > 0 && !time.grid.contains(&0), "{time:?}");
            let has_work = ["mul_vec", "mul_few", "mul_mat", "attention"]
                .iter()
                .any(|name| time.kernel.starts_with(name));
            assert_eq!(time.bytes.is_some() && time.tflops.is_some(), has_work, "{time:?}");
        }
        assert_eq!(measured, counted);
        let sorted = times.is_sorted_by(|a, b| a.us_total >= b.us_total);
        assert!(sorted && KernelTimes::take().is_empty());
    });
}
