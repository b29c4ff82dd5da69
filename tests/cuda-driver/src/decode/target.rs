//! Minimum compute capabilities of instructions, according to the PTX ISA.

/// Modifiers of conversions that need compute capability 8.0.
const CONVERSIONS: [&str; 5] = ["bf16", "bf16x2", "f16x2", "tf32", "relu"];

/// Returns the minimum compute capability of an instruction as 10 * major + minor, or 0 if it is at most 7.5.
pub fn least_capability(opcode: &str) -> u32 {
    let mut parts = opcode.split('.');
    let name = parts.next().unwrap_or_default();
    let modifiers: Vec<&str> = parts.collect();
    let has = |modifier: &str| modifiers.contains(&modifier);
    let needs_90 = match name {
        "wgmma" | "setmaxnreg" | "elect" | "griddepcontrol" => true,
        "cp" => has("bulk"),
        "mbarrier" => has("try_wait") || has("expect_tx"),
        "fence" => has("async") || has("mbarrier_init"),
        _ => false,
    };
    if needs_90 {
        return 90;
    }
    let needs_80 = match name {
        "cp" => has("async"),
        "redux" | "createpolicy" | "mbarrier" => true,
        "mma" => {
            let is_small = has("m16n8k8") && has("f16") || has("m8n8k16");
            !is_small || has("bf16") || has("tf32")
        }
        "cvt" => CONVERSIONS.into_iter().any(has),
        "fma" | "min" | "max" | "neg" | "abs" => has("bf16") || has("bf16x2") || has("relu") || has("NaN"),
        _ => false,
    };
    if needs_80 { 80 } else { 0 }
}

/// Returns true if an instruction needs a target of a single architecture, such as `sm_90a`.
pub fn is_specific(opcode: &str) -> bool {
    ["wgmma", "setmaxnreg"].contains(&opcode.split('.').next().unwrap_or_default())
}
