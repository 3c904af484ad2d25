/** Colours of data: viridis for magnitudes, magenta for what is no number. */

// Polynomials of degree 6 through viridis (Matt Zucker, shadertoy WlfXRN, CC0), red, green and blue.
const VIRIDIS = [
  [
    0.2777273272234177, 0.1050930431085774, -0.3308618287255563, -4.634230498983486,
    6.228269936347081, 4.776384997670288, -5.435455855934631,
  ],
  [
    0.005407344544966578, 1.404613529898575, 0.214847559468213, -5.799100973351585,
    14.17993336680509, -13.74514537774601, 4.645852612178535,
  ],
  [
    0.3340998053353061, 1.384590162594685, 0.09509516302823659, -19.33244095627987,
    56.69055260068105, -65.35303263337234, 26.3124352495832,
  ],
];

/** 256 colours as a canvas has them, little-endian: alpha, blue, green, red. */
export const VIRIDIS_TABLE = new Uint32Array(256);
for (let i = 0; i < 256; i++) {
  const t = i / 255;
  const [r, g, b] = VIRIDIS.map((c) => {
    const value = c.reduceRight((sum, each) => sum * t + each, 0);
    return Math.round(255 * Math.min(1, Math.max(0, value)));
  });
  VIRIDIS_TABLE[i] = (0xff << 24) | (b << 16) | (g << 8) | r;
}

/** The colour of a share of the scale, 0 to 1; what is outside has that of the nearer end. */
export function viridis(share: number): string {
  const n = VIRIDIS_TABLE[Math.round(255 * Math.max(0, Math.min(1, share)))];
  return `rgb(${n & 255},${(n >> 8) & 255},${(n >> 16) & 255})`;
}

/** What is far beyond the scale: no colour of viridis, #ff5a1f. */
export const BEYOND_COLOR = (0xff << 24) | (0x1f << 16) | (0x5a << 8) | 0xff;

export const BAD = "#cc79a7";

/** Colours that most eyes can tell apart from each other, from those of findings and of NaN. */
const SERIES_LIGHT = ["#0072b2", "#00a878", "#7a3fc1", "#3fb8e8", "#6b7a00", "#33394a", "#8a96a8"];
const SERIES_DARK = ["#56a8ff", "#2fc48d", "#a98bf5", "#8fe3ff", "#b9c932", "#f2f4f8", "#8592a6"];

/** Of the phases of a step, by their numbers: as those of reports, in drawing/colors.py. */
const PHASES_LIGHT = (
  "#b4bac4 #d2571a #c79a1e #5aa9e6 #1f5fbf #8e5bc7 #1f8f63 " +
  "#c2559d #8b8000 #8c5a3c #79b8a4 #3a4254 #2f83cf"
).split(" ");
const PHASES_DARK = (
  "#5a6270 #ff8a4c #e5bf55 #79c0ff #3f7ee0 #b28cf0 #3fbf8a " +
  "#ef86c6 #c9bd2e #c08a68 #5fa893 #a3b1c9 #58a6f0"
).split(" ");

// To make one costs the browser far more than to ask it.
const systemTheme = matchMedia("(prefers-color-scheme: dark)");

/** Elements of notebooks whose theme is not that of the system; none on a page of its own. */
const hosts = new Set<HTMLElement>();

/** Take the colours from an element, until what is returned is called. */
export function themedBy(host: HTMLElement): () => void {
  hosts.add(host);
  return () => hosts.delete(host);
}

function themeHost(): HTMLElement {
  for (const host of hosts) if (host.isConnected) return host;
  return document.documentElement;
}

export function isDark(): boolean {
  const theme = themeHost().dataset.theme;
  return theme ? theme === "dark" : systemTheme.matches;
}

export function series(i: number): string {
  const colors = isDark() ? SERIES_DARK : SERIES_LIGHT;
  return colors[i % colors.length];
}

/** The colour of a phase of a step. */
export function phaseColor(phase: number): string {
  return (isDark() ? PHASES_DARK : PHASES_LIGHT)[phase] ?? themed("ink-soft");
}

let known = { host: document.documentElement, dark: false, colors: new Map<string, string>() };

/** A colour of the theme, by the name of its property in base.css. */
export function themed(name: string): string {
  // Charts ask for every label; the browser would compute the style each time.
  const [host, dark] = [themeHost(), isDark()];
  if (known.host !== host || known.dark !== dark) known = { host, dark, colors: new Map() };
  let color = known.colors.get(name);
  if (color === undefined) {
    color = getComputedStyle(host).getPropertyValue(`--${name}`).trim();
    known.colors.set(name, color);
  }
  return color;
}

export function faded(color: string, alpha: number): string {
  const n = parseInt(color.slice(1), 16);
  return `rgba(${n >> 16}, ${(n >> 8) & 255}, ${n & 255}, ${alpha})`;
}
