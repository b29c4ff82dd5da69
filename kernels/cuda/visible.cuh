// The KV cells that each token sees, given by page tables. Invalid tables never yield cells outside the
// cache.
#pragma once
#include "common.cuh"

// KV cells per page.
const int PAGE = 64;

struct Visible {
    const int *cell_pos, *pos, *table, *starts, *pages;
    const u64 *masks;
    int n_kv, n_starts, n_entries, padding;
};

// Returns the entries of a token's page table as a half-open range.
DEVICE int2 entries_of(const Visible &v, int token) {
    int table = v.table[token];
    if (table < 0 || table + 1 >= v.n_starts) return make_int2(0, 0);
    int start = v.starts[table], end = v.starts[table + 1];
    if (start < 0 || end < 0) return make_int2(0, 0);
    end = min(end, v.n_entries);
    return make_int2(start, max(start, end));
}

struct Page {
    // First cell of the page.
    int first;
    // Bit mask of the sequence's cells, lowest bit first.
    u64 mask;
};

DEVICE Page page_of(const Visible &v, int entry) {
    Page page = {v.pages[entry], 0};
    if (page.first < 0 || page.first >= v.n_kv) return page;
    int len = min(v.n_kv - page.first, PAGE);
    page.mask = v.masks[entry] & (len == PAGE ? ~0ull : (1ull << len) - 1);
    return page;
}

// Returns true if cell `i` of a page is listed and occupied, and its position.
DEVICE bool lists(const Visible &v, const Page &page, int i, int &pos) {
    if (!(page.mask >> i & 1)) return false;
    pos = v.cell_pos[page.first + i];
    return pos >= 0;
}
