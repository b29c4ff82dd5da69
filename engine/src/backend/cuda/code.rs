//! Forms of a kernel's code, machine code and PTX, and their order of preference on a device.

use std::borrow::Cow;
use std::ffi::c_void;

/// First bytes of machine code, which is an ELF file.
const ELF: &[u8] = b"\x7fELF";

/// Length of the header of a 64-bit ELF file.
const ELF_HEADER_BYTES: usize = 64;

/// Prefix of an assembler hint that newer compilers emit and older PTX versions lack. Removing it does not
/// change results.
pub(super) const HINT: &str = ".pragma \"used_bytes_mask";

/// Form of compiled code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// Machine code for a compute capability. It also runs on GPUs with a higher minor version.
    MachineCode(i32),
    /// PTX for a compute capability, which the driver translates for this capability and all later ones.
    Ptx(i32),
}

impl Form {
    /// Returns the forms that suit a GPU, in the order of preference. `known` lists the capabilities that the
    /// compiler supports.
    pub(super) fn suitable(known: &[i32], capability: i32) -> Vec<Form> {
        let older = |&known: &i32| known <= capability;
        let same = |&known: &i32| known / 10 == capability / 10;
        let machine = known.iter().copied().filter(older).filter(same).max();
        let ptx = known.iter().copied().filter(older).max();
        machine
            .map(Form::MachineCode)
            .into_iter()
            .chain(ptx.map(Form::Ptx))
            .collect()
    }

    /// Returns the compiler options that select the form. `suffix` is `a` for code that only runs on GPUs of this
    /// capability.
    ///
    /// Line numbers serve profilers and memory checkers. They are stored only with machine code, next to the
    /// instructions, which they do not change.
    pub(super) fn options(self, suffix: &str) -> Vec<String> {
        match self {
            Form::MachineCode(capability) => vec![
                format!("--gpu-architecture=sm_{capability}{suffix}"),
                "--generate-line-info".to_owned(),
            ],
            Form::Ptx(capability) => vec![format!("--gpu-architecture=compute_{capability}{suffix}")],
        }
    }
}

impl std::fmt::Display for Form {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Form::MachineCode(capability) => write!(f, "machine code for sm_{capability}"),
            Form::Ptx(capability) => write!(f, "PTX for compute_{capability}"),
        }
    }
}

/// Code of a module: PTX with a terminating zero, or a complete ELF file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Code(Vec<u8>);

impl Code {
    /// Returns PTX as code. Text after a zero is dropped.
    pub(super) fn ptx(text: &str) -> Code {
        let text = text.split('\0').next().unwrap_or_default();
        Code(text.bytes().chain([0]).collect())
    }

    /// Returns machine code, or `None` if the bytes are not an ELF file.
    pub(super) fn machine_code(bytes: Vec<u8>) -> Option<Code> {
        let is_elf = bytes.len() > ELF_HEADER_BYTES && bytes.starts_with(ELF);
        is_elf.then_some(Code(bytes))
    }

    /// Returns the address for the driver.
    pub(super) fn address(&self) -> *const c_void {
        self.0.as_ptr().cast()
    }
}

/// Returns the newest PTX version, as (major, minor), of a driver that supports a CUDA version, given as
/// 1000 * major + 10 * minor. Returns `None` for versions that are unknown.
pub(super) fn ptx_version(cuda: i32) -> Option<(u32, u32)> {
    let minor = u32::try_from(cuda % 1000 / 10).ok()?;
    match cuda / 1000 {
        11 => Some((7, minor)),
        12 if minor <= 5 => Some((8, minor)),
        // CUDA 12.6 has the PTX version of CUDA 12.5.
        12 => Some((8, minor - 1)),
        13 => Some((9, minor)),
        _ => None,
    }
}

/// Declares a PTX version in compiled PTX that declares a newer one.
///
/// A compiler declares its own version, which older drivers reject. The kernels use no instruction newer than their
/// compute capability, so an older version describes them as well.
pub(super) fn lowered(ptx: &str, newest: Option<(u32, u32)>) -> Cow<'_, str> {
    let own = ptx.lines().find_map(version_of);
    let (Some(own), Some(newest)) = (own, newest) else {
        return Cow::Borrowed(ptx);
    };
    if own <= newest {
        return Cow::Borrowed(ptx);
    }
    let declared = format!(".version {}.{}", newest.0, newest.1);
    let lines = ptx.lines().filter(|line| !line.trim_start().starts_with(HINT));
    let lines = lines.map(|line| version_of(line).map_or(line, |_| &declared));
    Cow::Owned(lines.flat_map(|line| [line, "\n"]).collect())
}

/// Returns the version that a line of PTX declares.
fn version_of(line: &str) -> Option<(u32, u32)> {
    let (major, minor) = line.strip_prefix(".version")?.trim().split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Architectures of NVRTC 12.9.
    const KNOWN: [i32; 16] = [50, 52, 60, 61, 70, 75, 80, 86, 87, 89, 90, 100, 101, 103, 120, 121];

    #[test]
    fn known_gpu_gets_its_own_machine_code() {
        let forms = Form::suitable(&KNOWN, 90);
        assert_eq!(forms, [Form::MachineCode(90), Form::Ptx(90)]);
        assert_eq!(forms[0].options("")[0], "--gpu-architecture=sm_90");
        assert_eq!(forms[1].options(""), ["--gpu-architecture=compute_90"]);
        assert_eq!(forms[1].options("a"), ["--gpu-architecture=compute_90a"]);
    }

    /// Machine code runs on later GPUs of the same major version, and PTX on all later ones.
    #[test]
    fn unknown_gpu_gets_code_of_the_same_major_version_or_ptx() {
        assert_eq!(Form::suitable(&KNOWN, 122), [Form::MachineCode(121), Form::Ptx(121)]);
        assert_eq!(Form::suitable(&KNOWN, 110), [Form::Ptx(103)]);
        assert_eq!(Form::suitable(&[90, 120], 89), []);
    }

    #[test]
    fn newer_ptx_version_is_lowered() {
        let ptx = "// 12.9\n.version 8.8\n.target sm_90\n\t.pragma \"used_bytes_mask 15\";\nret;\n";
        let lower = ".version 8.4\n.target sm_90\nret;\n";
        assert_eq!(lowered(ptx, Some((8, 4))), format!("// 12.9\n{lower}"));
        for newest in [Some((8, 8)), Some((9, 0)), None] {
            assert_eq!(lowered(ptx, newest), ptx);
        }
    }

    /// Versions of NVIDIA's table of PTX releases.
    #[test]
    fn ptx_version_follows_cuda_version() {
        for (cuda, ptx) in [
            (11040, (7, 4)),
            (11080, (7, 8)),
            (12000, (8, 0)),
            (12040, (8, 4)),
            (12060, (8, 5)),
            (12080, (8, 7)),
            (12090, (8, 8)),
            (13000, (9, 0)),
            (13050, (9, 5)),
        ] {
            assert_eq!(ptx_version(cuda), Some(ptx), "{cuda}");
        }
        assert_eq!(ptx_version(14000), None);
    }

    #[test]
    fn code_is_terminated_ptx_or_an_elf_file() {
        assert_eq!(Code::machine_code(vec![b' '; 100]), None);
        assert_eq!(Code::machine_code(ELF.to_vec()), None);
        let elf = [ELF, &[0; 100]].concat();
        assert_eq!(Code::machine_code(elf.clone()), Some(Code(elf)));
        assert_eq!(Code::ptx("ret;\0\0"), Code(b"ret;\0".to_vec()));
    }
}
