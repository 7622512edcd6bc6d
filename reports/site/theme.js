"use strict";
// Runs before the page is drawn, so that it does not flash in the other colours.

const THEMES = ["auto", "light", "dark"];

function storedTheme() {
  try {
    const found = localStorage.getItem("theme");
    return THEMES.includes(found) ? found : "auto";
  } catch {
    return "auto"; // storage is forbidden to some pages that are opened from disk
  }
}

function chooseTheme(theme) {
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("theme", theme);
  } catch {
    // the choice then lasts as long as the page
  }
}

// Only a choice is stored: a page that loads before the last choice arrived must not replace it.
document.documentElement.dataset.theme = storedTheme();
