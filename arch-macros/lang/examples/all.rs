fn main() {
    let folder = std::path::PathBuf::from(std::env::args().nth(1).unwrap());
    let library = arch_lang::Folder(folder.clone());
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).filter(|p| p.extension().is_some_and(|e| e == "rs")).collect();
    files.sort();
    for p in files {
        let text = std::fs::read_to_string(&p).unwrap();
        for d in arch_lang::check_file(p.file_name().unwrap().to_str().unwrap(), &text, &library) {
            println!("{}: {}", d.place, d.message);
        }
    }
}
