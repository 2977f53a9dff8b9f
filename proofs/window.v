(* The window theorem: in no half-open interval of the length of a window are more units used than a limit admits.

   Coq checks every step of this file: `python3 dev.py proof`. To read what it says you need no Coq: each definition and
   each theorem has a comment that says what it means for requests, and what stands between `Proof` and `Qed` is for the
   machine.

   What is assumed of the world, and not proved:

     steady     The clock of the store does not step back. Where it does, the ring moves its entries, which `spent`
                does not. (Each charge is decided after the one before it: a history is a list.)
     honest     The units of a charge are used from its time on and not after its moment; each is used once, handed
                back once, or neither. A request uses its units at once, a lease until the moment.
     rate       While a worker has a lease, its own clock goes at most a thousandth slower than the clock of the store,
                and does not stand still: a virtual machine is not paused.
     ring.py    counts what `spent` says, and so does the reference that random programs compare with each
                store: `moment_us`, `leaves_us` and `spent` of tests/reference/model.py.

   What is proved:

     never_more   In any interval [x, x + W) at most N units are used: by requests and leases, with refunds, with units
                  of leases that are handed back, with debts, and with amounts that change but never exceed N.
     slices       That holds for a limit above its resolution, whose slices have s microseconds, k of them in a window.
     exact        It holds for a limit within its resolution, which keeps the microsecond of each unit.
     alone        Under an exact limit a unit is used at the time of its charge: nothing can be leased.
     classic      With k slices instead of k + 1, which is the classic algorithm, the bound is false.
     in_period    A quota admits at most N units in each of its periods.
     in_lease     What a worker spends before its lease ends, it spends in the slice that the store has charged.

   What has no model here: several limits in one question (charged all or none, so the theorem holds for each of them),
   amounts that change across the resolution, permits, shared cells, and a store that loses what it has written.

   Times are whole microseconds. A history is a list of charges, the newest first. *)

Require Import ZArith List Lia Bool.
Import ListNotations.
Open Scope Z_scope.

Section Window.

(* A limit: at most N units in any window of W. Its slices have s microseconds, and what it has charged counts for
   `span` after the moment of the charge: at least for a whole window. *)
Variables W s span N : Z.
Hypothesis slice : 0 < s.
Hypothesis covers : 0 < W <= span.
Hypothesis amount : 0 <= N.

(* The moment by which the ring counts what it charges at t: the last microsecond of the slice of t. *)
Definition moment (t : Z) := t - t mod s + s - 1.

(* A charge: of a request, of a lease, or a debt.
     at_us     when the store has charged it
     units     how many units
     uses      when its units are used, one time for each; a request that is refunded uses none
     returns   when units are handed back, one time for each: a refund, or what is left over of a lease *)
Record charge := Charge { at_us : Z; units : Z; uses : list Z; returns : list Z }.

Definition number (times : list Z) := Z.of_nat (length times).

(* How many units of a charge have been handed back by now. *)
Definition returned (now_us : Z) (c : charge) := number (filter (fun r => r <=? now_us) (returns c)).

(* How many units the ring still has of it. *)
Definition kept (now_us : Z) (c : charge) := units c - returned now_us c.

(* Whether it still counts: it does until `span` after its moment. *)
Definition counts (now_us : Z) (c : charge) := now_us <? moment (at_us c) + span.

(* What the ring says that is spent: the units that it still has of all charges that still count. *)
Fixpoint spent (now_us : Z) (history : list charge) : Z :=
  match history with
  | [] => 0
  | c :: older => (if counts now_us c then kept now_us c else 0) + spent now_us older
  end.

(* The assumption of that name. *)
Definition honest (c : charge) :=
  number (uses c) + number (returns c) <= units c /\ Forall (fun p => at_us c <= p <= moment (at_us c)) (uses c).

(* The histories that a store can have.
     nothing    it begins with none
     admitted   it charges a request or a lease if its units fit beside what is spent, into the amount n of that time
     debt       it charges in any case what nobody is admitted by: a cost that is known afterwards, a counted refusal *)
Inductive charged : list charge -> Prop :=
  | nothing : charged []
  | admitted c n h : charged h -> honest c -> n <= N -> units c + spent (at_us c) h <= n -> charged (c :: h)
  | debt c h : charged h -> honest c -> uses c = [] -> charged (c :: h).

(* Whether a time lies in the interval [x, x + W). *)
Definition inside (x p : Z) := (x <=? p) && (p <? x + W).

(* How many units are used in the interval that begins at x. *)
Fixpoint used (x : Z) (history : list charge) : Z :=
  match history with
  | [] => 0
  | c :: older => number (filter (inside x) (uses c)) + used x older
  end.

(* A moment is not before its charge, and within the same slice. So a request, which uses its units at once, is honest. *)
Lemma moment_late t : t <= moment t < t + s.
Proof. unfold moment. pose proof (Z.mod_pos_bound t s slice). lia. Qed.

Lemma at_once t u : Forall (fun p => p = t) u -> honest (Charge t (number u) u []).
Proof.
  intro now. split; simpl; [unfold number; simpl; lia|].
  eapply Forall_impl; [|exact now]. simpl. intros p ->. pose proof (moment_late t). lia.
Qed.

Lemma filter_le {A} (f : A -> bool) l : (length (filter f l) <= length l)%nat.
Proof. induction l; simpl; [lia|]. destruct (f a); simpl; lia. Qed.

(* At no time has the ring fewer units of a charge than are used of it, sooner or later. *)
Lemma kept_enough now_us c : honest c -> number (uses c) <= kept now_us c.
Proof.
  intros [few _]. unfold kept, returned, number in *.
  pose proof (filter_le (fun r => r <=? now_us) (returns c)). lia.
Qed.

(* As long as an interval has not ended, every charge of which a unit is used in it counts. So no more units are used in
   it than the ring says that are spent. *)
Lemma used_spent x now_us h : now_us < x + W -> Forall honest h -> used x h <= spent now_us h.
Proof.
  intros before all. induction all as [|c r ok _ IH]; simpl; [lia|].
  pose proof (kept_enough now_us c ok) as enough. destruct ok as [_ inslice].
  pose proof (filter_le (inside x) (uses c)).
  destruct (counts now_us c) eqn:E; unfold number in *; [lia|].
  unfold counts in E. apply Z.ltb_ge in E.
  assert (none : filter (inside x) (uses c) = []).
  { clear -inslice E before covers. induction inslice as [|p l [_ late] _ IHl]; simpl in *; auto.
    unfold inside at 1. destruct (Z.leb_spec x p); simpl; [exfalso; lia|]. apply IHl. }
  rewrite none. simpl. lia.
Qed.

Lemma all_honest h : charged h -> Forall honest h.
Proof. induction 1; auto. Qed.

(* The bound: whatever a store admits by these rules, no interval of the length of the window has more than N. *)
Theorem never_more h : charged h -> forall x, used x h <= N.
Proof.
  induction 1 as [|c n h past IH ok below room|c h past IH ok none]; intro x; simpl.
  - lia.
  - destruct (filter (inside x) (uses c)) as [|p l] eqn:F; [unfold number; simpl; apply IH|].
    assert (P : In p (filter (inside x) (uses c))) by (rewrite F; left; auto).
    apply filter_In in P as [P inwindow].
    unfold inside in inwindow. apply andb_prop in inwindow as [_ before]. apply Z.ltb_lt in before.
    pose proof (kept_enough (at_us c) c ok) as enough. destruct ok as [few inslice].
    rewrite Forall_forall in inslice. specialize (inslice p P).
    pose proof (used_spent x (at_us c) h ltac:(lia) (all_honest h past)).
    pose proof (filter_le (inside x) (uses c)). rewrite F in *. unfold number in *. lia.
  - rewrite none. simpl. unfold number. simpl. apply IH.
Qed.

End Window.

(* A limit above its resolution: slices of s, and k = ceil(W / s) of them make a window. Its units count k slices and one
   microsecond after their moment, as in `Limit`. *)
Theorem slices W s N (some : 0 < W) (slice : 0 < s) (amount : 0 <= N) :
  let k := (W + s - 1) / s in
  forall h, charged s (k * s + 1) N h -> forall x, used W x h <= N.
Proof.
  intros k h past x. eapply never_more; eauto. split; auto.
  unfold k. pose proof (Z.div_mod (W + s - 1) s ltac:(lia)). pose proof (Z.mod_pos_bound (W + s - 1) s slice). lia.
Qed.

(* A limit within its resolution: slices of one microsecond, whose units count W. *)
Theorem exact W N (some : 0 < W) (amount : 0 <= N) : forall h, charged 1 W N h -> forall x, used W x h <= N.
Proof. intros h past x. eapply never_more; eauto. lia. Qed.

(* Its units can only be used at the microsecond of their charge. So it has no leases. *)
Lemma alone c : honest 1 c -> Forall (fun p => p = at_us c) (uses c).
Proof.
  intros [_ inslice]. eapply Forall_impl; [|exact inslice]. simpl. intros p between.
  unfold moment in between. rewrite Z.mod_1_r in between. lia.
Qed.

(* What would be wrong with k slices instead of k + 1. "1 in 40 us" with slices of 10 us, whose units count three slices
   after their moment: one request at 9, which leaves at 40, and one at 40, are two in the window that begins at 9. So the
   theorem does not hold by accident: where a unit counts for less than a window, it is false. *)
Example classic : exists h, charged 10 (3 * 10 + 1) 1 h /\ used 40 9 h = 2.
Proof.
  exists [Charge 40 1 [40] []; Charge 9 1 [9] []]. split; [|reflexivity].
  apply admitted with (n := 1); [apply admitted with (n := 1); [apply nothing| | |]| | |];
    solve [lia | vm_compute; congruence | apply (at_once 10 ltac:(lia)); repeat constructor].
Qed.

Section Period.

(* A quota: at most N units in each period of a calendar, where `ends t` is the end of the period that contains t. What is
   charged in a period counts until it ends. *)
Variable N : Z.
Variable ends : Z -> Z.
Hypothesis amount : 0 <= N.

(* What the ring says that is spent: as for a window, but until the period ends. *)
Fixpoint spent_in_period (now_us : Z) (history : list charge) : Z :=
  match history with
  | [] => 0
  | c :: older => (if now_us <? ends (at_us c) then kept now_us c else 0) + spent_in_period now_us older
  end.

(* The assumption `honest`, for a period: units are used before it ends. *)
Definition honest_in_period (c : charge) :=
  number (uses c) + number (returns c) <= units c /\ Forall (fun p => at_us c <= p < ends (at_us c)) (uses c).

(* The histories that a store can have, as for a window. *)
Inductive charged_in_period : list charge -> Prop :=
  | nothing_yet : charged_in_period []
  | admitted_in_period c n h : charged_in_period h -> honest_in_period c -> n <= N ->
      units c + spent_in_period (at_us c) h <= n -> charged_in_period (c :: h)
  | debt_in_period c h : charged_in_period h -> honest_in_period c -> uses c = [] -> charged_in_period (c :: h).

(* A period: it lasts from `begins` until before `over`, and the periods before it have ended when it begins. *)
Variables begins over : Z.
Hypothesis earlier : forall t, t < begins -> ends t <= begins.
Hypothesis within : forall t, begins <= t < over -> ends t = over.

(* How many units are used in it. *)
Definition inside_period (p : Z) := (begins <=? p) && (p <? over).
Fixpoint used_in_period (history : list charge) : Z :=
  match history with
  | [] => 0
  | c :: older => number (filter inside_period (uses c)) + used_in_period older
  end.

Lemma kept_in_period now_us c : honest_in_period c -> number (uses c) <= kept now_us c.
Proof.
  intros [few _]. unfold kept, returned, number in *.
  pose proof (filter_le (fun r => r <=? now_us) (returns c)). lia.
Qed.

(* What is used in the period is charged in it. *)
Lemma charged_within c p :
  honest_in_period c -> In p (uses c) -> inside_period p = true -> begins <= at_us c < over.
Proof.
  intros [_ before] used_at inperiod. rewrite Forall_forall in before. specialize (before p used_at).
  unfold inside_period in inperiod. apply andb_prop in inperiod as [from until].
  apply Z.leb_le in from. apply Z.ltb_lt in until.
  destruct (Z.lt_ge_cases (at_us c) begins) as [old|]; [pose proof (earlier _ old)|]; lia.
Qed.

(* So while the period lasts, no more units are used in it than the ring says that are spent. *)
Lemma used_spent_in_period now_us h :
  begins <= now_us < over -> Forall honest_in_period h -> used_in_period h <= spent_in_period now_us h.
Proof.
  intros lasts all. induction all as [|c r ok _ IH]; simpl; [lia|].
  pose proof (kept_in_period now_us c ok) as enough. pose proof (filter_le inside_period (uses c)) as some.
  destruct (filter inside_period (uses c)) as [|p l] eqn:F; unfold number in *.
  - destruct (now_us <? ends (at_us c)); simpl; lia.
  - assert (P : In p (filter inside_period (uses c))) by (rewrite F; left; auto).
    apply filter_In in P as [P inperiod]. pose proof (within _ (charged_within c p ok P inperiod)) as same.
    destruct (Z.ltb_spec now_us (ends (at_us c))); lia.
Qed.

Lemma all_honest_in_period h : charged_in_period h -> Forall honest_in_period h.
Proof. induction 1; auto. Qed.

(* The bound of a quota. *)
Theorem in_period h : charged_in_period h -> used_in_period h <= N.
Proof.
  induction 1 as [|c n h past IH ok below room|c h past IH ok none]; simpl.
  - lia.
  - pose proof (kept_in_period (at_us c) c ok) as enough. pose proof (filter_le inside_period (uses c)) as some.
    destruct (filter inside_period (uses c)) as [|p l] eqn:F; [unfold number; simpl; apply IH|].
    assert (P : In p (filter inside_period (uses c))) by (rewrite F; left; auto).
    apply filter_In in P as [P inperiod]. pose proof (charged_within c p ok P inperiod) as here.
    pose proof (used_spent_in_period (at_us c) h here (all_honest_in_period h past)).
    destruct ok as [few _]. unfold number in *. lia.
  - rewrite none. unfold number. simpl. apply IH.
Qed.

End Period.

Section Worker.

(* A lease, by two clocks: a worker reads its own before it asks (sent_local), the store charges (charged_local by the
   clock of the worker, charged_us by that of the store), and the worker uses a unit (used_local, used_us). The slice of
   the charge ends at `ends_us`. Both clocks are rounded down to microseconds, so a time between two readings may be one
   more or less than it seems. *)
Variables RATE sent_local charged_local used_local charged_us used_us ends_us : Z.
Hypothesis positive : 0 < RATE.
Hypothesis asked_first : sent_local <= charged_local.
Hypothesis lasting : charged_us <= ends_us.

(* The assumption of that name, with RATE = 1000: of the time of the store, at most one part in RATE + 1 is missing. *)
Hypothesis rate : (used_us - charged_us - 1) * RATE <= (used_local - charged_local + 1) * (RATE + 1).

(* A worker has the lease for what is left of the slice, less the part that its clock may be slow and 5 us for the
   rounding, from before it asked. *)
Definition length_us := ends_us - charged_us.
Definition until_local := sent_local + length_us - length_us / RATE - 5.

(* Whoever finds the lease in force after taking a unit uses that unit before the slice ends, by the clock of the store.
   So a lease is honest, however long the answer took or the worker was stopped before it took the unit. *)
Theorem in_lease : used_local < until_local -> used_us < ends_us.
Proof.
  unfold until_local, length_us. intros early.
  set (d := ends_us - charged_us) in *.
  assert (D : d < (d / RATE + 1) * RATE).
  { pose proof (Z.div_mod d RATE ltac:(lia)). pose proof (Z.mod_pos_bound d RATE positive). lia. }
  set (q := d / RATE) in *.
  assert (L : used_local - charged_local + 1 <= d - q - 4) by lia.
  assert (M : (used_us - charged_us - 1) * RATE <= (d - q - 5) * (RATE + 1)) by nia.
  assert (E : (d - q - 5) * (RATE + 1) < (d - 1) * RATE) by nia.
  assert (F : used_us - charged_us - 1 < d - 1) by nia.
  unfold d in *. lia.
Qed.

End Worker.

(* Nothing above is taken on trust: each of these prints "Closed under the global context". *)
Print Assumptions slices.
Print Assumptions exact.
Print Assumptions alone.
Print Assumptions classic.
Print Assumptions in_period.
Print Assumptions in_lease.
