//! Compiled kernels on disk, by a hash of all that they were made of. An entry that is damaged counts as missing, and one that cannot be
//! written is made anew the next time.

use std::ffi::CString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Where downloads and compiled kernels go: `$LLAMA_CACHE`, else `llama` in the user's cache folder. `None` if no variable says where that
/// is.
pub fn user_cache() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let ours = || {
        Some(
            variable("XDG_CACHE_HOME")
                .or_else(|| Some(variable("HOME")?.join(".cache")))?
                .join("llama"),
        )
    };
    variable("LLAMA_CACHE").or_else(ours)
}

/// A hash of 128 bits (FNV-1a): the same in every build of this program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hash(u128);

impl Hash {
    /// The hash of these parts, which are told apart.
    pub(super) fn of<'a>(parts: impl IntoIterator<Item = &'a str>) -> Hash {
        const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
        let mut hash = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128;
        for part in parts {
            // A byte that occurs in no text ends each part.
            for &byte in part.as_bytes().iter().chain(&[0xff]) {
                hash = (hash ^ u128::from(byte)).wrapping_mul(PRIME);
            }
        }
        Hash(hash)
    }

    fn to_hex(self) -> String {
        format!("{:032x}", self.0)
    }
}

/// A folder of compiled kernels.
#[derive(Clone, Debug)]
pub(super) struct Cache {
    folder: Option<PathBuf>,
}

impl Cache {
    /// The user's.
    pub(super) fn of_user() -> Cache {
        Cache {
            folder: user_cache().map(|folder| folder.join("cuda")),
        }
    }

    #[cfg(test)]
    fn at(folder: &Path) -> Cache {
        Cache {
            folder: Some(folder.to_owned()),
        }
    }

    /// The PTX of this key, or what `make` gives, which is then kept.
    pub(super) fn get<E>(&self, key: Hash, make: impl FnOnce() -> Result<CString, E>) -> Result<CString, E> {
        let Some(folder) = &self.folder else {
            return make();
        };
        let path = folder.join(format!("{}.ptx", key.to_hex()));
        if let Some(ptx) = read(&path) {
            return Ok(ptx);
        }
        let ptx = make()?;
        // Without the entry all works, only slower.
        let _ = write(folder, &path, &ptx);
        Ok(ptx)
    }
}

/// An entry: a line with the hash of what follows, then the PTX.
fn read(path: &Path) -> Option<CString> {
    let entry = fs::read_to_string(path).ok()?;
    let (hash, ptx) = entry.split_once('\n')?;
    let is_whole = hash == Hash::of([ptx]).to_hex();
    CString::new(ptx).ok().filter(|_| is_whole)
}

/// Writes an entry so that others see all of it or nothing.
fn write(folder: &Path, path: &Path, ptx: &CString) -> std::io::Result<()> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    fs::create_dir_all(folder)?;
    let text = ptx.to_string_lossy();
    let unfinished = folder.join(format!(".{}.{number}", std::process::id()));
    let mut file = fs::File::create(&unfinished)?;
    let written = writeln!(file, "{}", Hash::of([&*text]).to_hex()).and_then(|()| file.write_all(text.as_bytes()));
    let renamed = written.and_then(|()| fs::rename(&unfinished, path));
    if renamed.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    renamed
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn what_was_made_once_is_found_and_what_is_damaged_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(&folder.path().join("cuda"));
        let made = Cell::new(0);
        let get = |key: &str| {
            let make = || {
                made.set(made.get() + 1);
                Ok::<_, ()>(CString::new(format!("// {key}")).unwrap())
            };
            cache.get(Hash::of([key]), make).unwrap().into_string().unwrap()
        };
        assert_eq!(
            (get("a"), get("a"), get("b")),
            ("// a".into(), "// a".into(), "// b".into())
        );
        assert_eq!(made.get(), 2);
        let entries = || {
            fs::read_dir(folder.path().join("cuda"))
                .unwrap()
                .map(|e| e.unwrap().path())
        };
        assert_eq!(entries().count(), 2, "nothing unfinished is left");
        let changes: [fn(&mut Vec<u8>); 3] = [|e| e.truncate(e.len() - 1), |e| e[34] ^= 1, Vec::clear];
        for change in changes {
            for path in entries() {
                let mut entry = fs::read(&path).unwrap();
                change(&mut entry);
                fs::write(&path, entry).unwrap();
            }
            let before = made.get();
            assert_eq!((get("a"), get("b")), ("// a".into(), "// b".into()));
            assert_eq!(made.get(), before + 2);
        }
    }

    #[test]
    fn parts_are_told_apart() {
        assert_eq!(Hash::of(["ab", "c"]), Hash::of(["ab", "c"]));
        assert_ne!(Hash::of(["ab", "c"]), Hash::of(["a", "bc"]));
    }

    #[test]
    fn a_folder_that_cannot_be_had_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let ptx = CString::new("ptx").unwrap();
        let found = Cache::at(&file).get(Hash::of(["a"]), || Ok::<_, ()>(ptx.clone()));
        assert_eq!(found, Ok(ptx));
    }
}
