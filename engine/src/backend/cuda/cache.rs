//! Disk cache of compiled kernels (machine code or PTX), keyed by a hash of all inputs. A damaged entry counts as
//! missing. If an entry cannot be written, the kernel is compiled again next time.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Returns the directory for downloads and compiled kernels: `$LLAMA_CACHE`, else `llama` in the user's cache
/// directory. Returns `None` if no environment variable defines it.
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

/// A 128-bit FNV-1a hash, stable across builds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hash(u128);

impl Hash {
    /// Hashes a sequence of strings. Moving a character between strings changes the hash.
    pub(super) fn of<T: AsRef<[u8]>>(parts: impl IntoIterator<Item = T>) -> Hash {
        const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
        let mut hash = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128;
        for part in parts {
            // Terminates each string with a byte that never occurs in UTF-8.
            for &byte in part.as_ref().iter().chain(&[0xff]) {
                hash = (hash ^ u128::from(byte)).wrapping_mul(PRIME);
            }
        }
        Hash(hash)
    }

    pub(super) fn to_hex(self) -> String {
        format!("{:032x}", self.0)
    }
}

/// A directory of compiled kernels.
#[derive(Clone, Debug)]
pub(super) struct Cache {
    dir: Option<PathBuf>,
}

impl Cache {
    /// Returns the current user's cache.
    pub(super) fn of_user() -> Cache {
        Cache {
            dir: user_cache().map(|dir| dir.join("cuda")),
        }
    }

    #[cfg(test)]
    fn at(dir: &Path) -> Cache {
        Cache {
            dir: Some(dir.to_owned()),
        }
    }

    /// Returns the code for a key. On a miss, calls `make` and stores the result.
    pub(super) fn get<E>(&self, key: Hash, make: impl FnOnce() -> Result<Vec<u8>, E>) -> Result<Vec<u8>, E> {
        let Some(dir) = &self.dir else {
            return make();
        };
        let path = path(dir, key);
        if let Some(code) = read(&path) {
            return Ok(code);
        }
        let code = make()?;
        // A failed write only costs time on the next run.
        let _ = write(dir, &path, &code);
        Ok(code)
    }

    /// Returns true if there is an entry for a key.
    pub(super) fn contains(&self, key: Hash) -> bool {
        self.dir.as_ref().is_some_and(|dir| path(dir, key).is_file())
    }
}

fn path(dir: &Path, key: Hash) -> PathBuf {
    dir.join(format!("{}.code", key.to_hex()))
}

/// Reads an entry: a line with the hash of the code, then the code.
fn read(path: &Path) -> Option<Vec<u8>> {
    let mut entry = fs::read(path).ok()?;
    let hash_len = entry.iter().position(|&byte| byte == b'\n')?;
    let code = entry.split_off(hash_len + 1);
    let is_whole = entry[..hash_len] == *Hash::of([&code]).to_hex().as_bytes();
    is_whole.then_some(code)
}

/// Writes an entry atomically, so that readers see either all of it or nothing.
fn write(dir: &Path, path: &Path, code: &[u8]) -> std::io::Result<()> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    fs::create_dir_all(dir)?;
    let unfinished = dir.join(format!(".{}.{number}", std::process::id()));
    let mut file = fs::File::create(&unfinished)?;
    let written = writeln!(file, "{}", Hash::of([code]).to_hex()).and_then(|()| file.write_all(code));
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
    fn cached_entry_is_reused_and_damaged_entry_rebuilt() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(&dir.path().join("cuda"));
        let made = Cell::new(0);
        let get = |key: &str| {
            let make = || {
                made.set(made.get() + 1);
                Ok::<_, ()>(format!("// {key}").into_bytes())
            };
            String::from_utf8(cache.get(Hash::of([key]), make).unwrap()).unwrap()
        };
        assert_eq!(
            (get("a"), get("a"), get("b")),
            ("// a".into(), "// a".into(), "// b".into())
        );
        assert_eq!(made.get(), 2);
        assert_eq!(["a", "c"].map(|key| cache.contains(Hash::of([key]))), [true, false]);
        let entries = || {
            fs::read_dir(dir.path().join("cuda"))
                .unwrap()
                .map(|e| e.unwrap().path())
        };
        assert_eq!(entries().count(), 2, "no temporary files are left");
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
    fn hash_separates_parts() {
        assert_eq!(Hash::of(["ab", "c"]), Hash::of(["ab", "c"]));
        assert_ne!(Hash::of(["ab", "c"]), Hash::of(["a", "bc"]));
    }

    #[test]
    fn unusable_cache_directory_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let cache = Cache::at(&file);
        let found = cache.get(Hash::of(["a"]), || Ok::<_, ()>(b"code".to_vec()));
        assert_eq!(found, Ok(b"code".to_vec()));
        assert!(!cache.contains(Hash::of(["a"])));
    }
}
