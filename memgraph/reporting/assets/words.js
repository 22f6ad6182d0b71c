// Numbers as people read them, and elements of the page.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

// One digit after the point; of a tie the even one, as Python writes it.
function oneDigit(number) {
  const tie = Number.isInteger(number * 4) && !Number.isInteger(number * 2);
  if (!tie) return number.toFixed(1);
  const low = Math.floor(number * 10);
  return ((low % 2 === 0 ? low : low + 1) / 10).toFixed(1);
}

function bytes(size) {
  let scaled = size;
  for (const unit of UNITS) {
    if (Math.abs(Number(oneDigit(scaled))) < 1024 || unit === "TiB") {
      return unit === "B" ? `${size} B` : `${oneDigit(scaled)} ${unit}`;
    }
    scaled /= 1024;
  }
}

function seconds(time) {
  if (time === 0 || Math.abs(time) >= 1) return `${oneDigit(time)} s`;
  return Math.abs(time) >= 1e-3 ? `${oneDigit(time * 1e3)} ms` : `${oneDigit(time * 1e6)} us`;
}

function percent(fraction, withSign = false) {
  const text = `${oneDigit(100 * fraction)} %`;
  return withSign && fraction >= 0 ? `+${text}` : text;
}

// A difference, with its sign; told: how the figure itself is written.
function signed(difference, told) {
  if (difference === 0) return "-";
  return `${difference > 0 ? "+" : "-"}${told(Math.abs(difference))}`;
}

// Round numbers within a range, about so many.
function ticks(low, high, count) {
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((n) => n * power >= raw * 0.999);
  const found = [];
  for (let n = Math.ceil(low / step); n * step <= high; n++) found.push(n * step);
  return found;
}

const $ = (id) => document.getElementById(id);

// An element: its tag, attributes (on... are listeners), and children; text is only ever text.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== undefined && child !== null));
  return element;
}

// An element of a picture.
function shape(tag, attributes = {}, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  return element;
}

// A text on a canvas with an edge of the colour behind it, so that it can be read over a line.
function label(ink, page, text, x, y) {
  ink.save();
  ink.setLineDash([]);
  ink.lineJoin = "round";
  ink.lineWidth = 4;
  ink.strokeStyle = page.colour("--panel");
  ink.strokeText(text, x, y);
  ink.restore();
  ink.fillText(text, x, y);
}

// A sentence in which no number stands alone at the end of a line.
const unbroken = (text) => text.replaceAll(" %", "\u00a0%");

const basename = (path) => path.slice(path.lastIndexOf("/") + 1);

// Colours of Okabe and Ito, which the colour-blind can tell apart.
const COLOURS = {
  saved: "#0072b2",
  outputs: "#666c78",
  gradients: "#009e73",
  recomputed: "#e69f00",
  "in flight": "#cc79a7",
  transient: "#56b4e9",
  "kernel scratch": "#d55e00",
  "to come": "#ddd49a",
};
const GREYS = ["#9aa1ab", "#b3b9c1", "#c8ccd2", "#828a95"];
const DOING = {
  forward: "#0072b2",
  backward: "#009e73",
  recompute: "#e69f00",
  wait: "#d55e00",
  copy: "#cc79a7",
};
