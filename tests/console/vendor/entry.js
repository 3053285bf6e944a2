export { h, render, Fragment } from "preact";
export { useState, useEffect, useRef, useMemo, useCallback, useLayoutEffect } from "preact/hooks";
export { signal, computed, effect, batch, useSignal, useComputed } from "@preact/signals";
import { h } from "preact";
import htm from "htm";
// htm keeps each element without variables and uses it again. Preact leaves the element's parent in it, so the page on which
// it was first shown, and every page after that, would stay in memory. A 3 in the list of its parts tells htm not to keep it.
export const html = htm.bind(function () {
  this[0] = 3;
  return h.apply(null, arguments);
});
