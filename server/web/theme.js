// Runs before anything is shown, so that a dark page is never white at first.
'use strict';

{
  const THEMES = ['auto', 'light', 'dark'];
  const KEY = 'llama.theme';
  const stored = () => {
    try {
      return JSON.parse(localStorage.getItem(KEY));
    } catch {
      return null;
    }
  };
  const apply = (theme) => {
    document.documentElement.dataset.theme = theme;
  };
  let theme = THEMES.includes(stored()) ? stored() : 'auto';
  apply(theme);
  globalThis.theme = {
    /** `auto`, `light` or `dark`. */
    get: () => theme,
    /** Takes the next one. */
    next() {
      theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
      apply(theme);
      try {
        localStorage.setItem(KEY, JSON.stringify(theme));
      } catch {
        // It then lasts as long as the page.
      }
    },
  };
}
