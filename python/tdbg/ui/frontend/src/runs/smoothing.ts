/** A curve with less noise: an average that forgets, of which the raw one stays behind it. */
import type { Grid } from "../grid";

/** How far back an average looks, as a share of the steps that are shown. */
export const SMOOTHINGS = ["0", "0.5", "1", "2", "5", "10"] as const;

/**
 * The mean of a grid's only row, smoothed over so many places.
 *
 * An exponential average in places, not in columns, so that zooming does not change it, and
 * divided by the weight that it has so far, so that it does not begin at zero.  What is no
 * number stays out of it, and is still marked.
 */
export function smoothed(grid: Grid, places: number): Grid {
  const mean = new Float32Array(grid.columns).fill(NaN);
  let [sum, weight, last] = [0, 0, 0];
  for (let j = 0; j < grid.columns; j++) {
    const value = grid.mean[j];
    if (!grid.rows[j] || Number.isNaN(value)) continue;
    const kept = Math.exp((-(j - last) * grid.width) / Math.max(places, 1e-9));
    sum = sum * kept + value;
    weight = weight * kept + 1;
    last = j;
    mean[j] = sum / weight;
  }
  return { ...grid, low: mean, high: mean, mean, bad: new Uint32Array(grid.columns) };
}
