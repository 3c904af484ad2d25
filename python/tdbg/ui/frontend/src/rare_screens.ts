/** Runs beside each other, ranks, and the list of keys: loaded by rare.ts. */
export { CompareScreen } from "./compare/screen";
export { KeyHelp } from "./key_help";
export { RankSelect, Ranks, StepTimes } from "./ranks";
