/** What drawings on canvases share: sharpness, and an axis of places below. */
import { faded, themed } from "./colors";

export const FONT = "11.5px system-ui, sans-serif";

/** An empty canvas that has as many pixels as the screen has below it. */
export function sharp(
  canvas: HTMLCanvasElement,
  width: number,
  height: number,
): CanvasRenderingContext2D {
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const ctx = canvas.getContext("2d")!;
  ctx.scale(ratio, ratio);
  return ctx;
}

/** Round places between two, about one for every 90 pixels, and no closer than *least*. */
export function ticks(from: number, to: number, width: number, least = 1): number[] {
  const most = Math.max(2, Math.floor(width / 90));
  const raw = Math.max(least, (to - from) / most);
  const power = 10 ** Math.floor(Math.log10(raw));
  const unit = Math.max(least, [1, 2, 5, 10].map((k) => k * power).find((k) => k >= raw)!);
  const found: number[] = [];
  for (let k = Math.ceil(from / unit); k * unit < to; k++) found.push(k * unit);
  return found;
}

/** Right of what is drawn over places; all charts of a screen begin and end at the same pixels. */
export const RIGHT = 12;

/** So wide is the room left of what is drawn, for names and values. */
export function gutterOf(width: number): number {
  return width < 620 ? 108 : Math.min(230, Math.round(width * 0.2));
}

/** Slanted lines: nothing was recorded there. */
export function hatch(
  ctx: CanvasRenderingContext2D,
  left: number,
  top: number,
  width: number,
  height: number,
  distance = 7,
): void {
  ctx.save();
  ctx.beginPath();
  ctx.rect(left, top, width, height);
  ctx.clip();
  ctx.strokeStyle = faded(themed("ink-soft"), 0.3);
  ctx.lineWidth = distance / 8;
  ctx.beginPath();
  // The lines of neighbours meet.
  for (let x = left - height - ((left - height) % distance); x < left + width; x += distance) {
    ctx.moveTo(x, top + height);
    ctx.lineTo(x + height, top);
  }
  ctx.stroke();
  ctx.restore();
}

/** Draw the ticks of an axis at *top*, from the pixel *left* on for *width*; no text leaves it. */
export function drawAxis(
  ctx: CanvasRenderingContext2D,
  [from, to]: [number, number],
  left: number,
  width: number,
  top: number,
  text: (place: number) => string,
): void {
  ctx.font = FONT;
  ctx.fillStyle = themed("ink-soft");
  ctx.textBaseline = "top";
  for (const tick of ticks(from, to, width)) {
    // A step has its number in the middle of its width.
    const at = left + ((tick + 0.5 - from) / Math.max(1, to - from)) * width;
    ctx.fillRect(at, top, 1, 4);
    ctx.textAlign = "center";
    if (at > left + width - 30) ctx.textAlign = "right";
    else if (at < left + 16) ctx.textAlign = "left";
    ctx.fillText(text(tick), at, top + 7);
  }
  ctx.textAlign = "left";
}
