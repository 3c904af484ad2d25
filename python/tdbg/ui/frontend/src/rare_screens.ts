/** Runs beside each other, and ranks: loaded by rare.ts. */
export { CompareScreen } from "./compare/screen";
export { RankSelect, Ranks, StepTimes } from "./ranks";
