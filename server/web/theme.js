// Runs before the first paint, so that a dark page does not flash white.
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
    /** Switches to the next theme. */
    next() {
      theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
      apply(theme);
      try {
        localStorage.setItem(KEY, JSON.stringify(theme));
      } catch {
        // Without storage, the theme applies until the page closes.
      }
    },
  };
}
