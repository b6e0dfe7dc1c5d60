/* Evaluation and Drafts tabs: sentences, tables and figures from plain data, filled in by textContent. */
(function (global) {
  "use strict";
})(window);
